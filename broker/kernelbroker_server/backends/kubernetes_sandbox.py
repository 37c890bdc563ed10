"""One sandbox of the `kubernetes` backend: its Pod, the connection to it, the cause of its end.

Its workspace is a volume of the Pod. `workspace` is a copy on the broker's disk, which the files come from
and go to. It stays as it was at the last `push_files` or `pull_files`: this is left if the Pod is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ..kernels.endpoint import TcpEndpoint
from ..kernels.transfer import TransferFailed
from .base import UNKNOWN, EndCause, LaunchError, SandboxEnd, SandboxSpec, Usage
from .directories import remove_tree
from .exit_reason import end_of
from .kubernetes_api import KubernetesError, NotThere
from .pod_certificate import PodSecret
from .pod_context import PodContext
from .pod_control import PodControl
from .pod_manifest import (
    LABEL_SANDBOX,
    PORT,
    pod_manifest,
    secret_manifest,
)
from .pod_resize import resize
from .pod_status import Pod, address_of, end_of_pod, launch_problem, unschedulable
from .sandbox_record import SandboxRecord
from .sandbox_set import ClosableSandbox
from .sockets import answers

T = TypeVar("T")
log = logging.getLogger(__name__)

_RETRY_S = 0.5
_LOOK_S = 2.0
"""Between two looks at a Pod that is being deleted, in case the watch has missed its end."""
_DELETED_S = 20.0
"""After which a Pod is deleted without its node, which may be lost."""
_HELD_S = 40.0
"""After which nobody waits for a Pod any more whose deletion something in the cluster holds up."""
_RESTARTED_S = 10.0


class KubernetesSandbox(ClosableSandbox):
    """Call `open` once and then `started`, or `adopt`; then `close` until it returns True.

    Attributes:
        closing: its removal has begun.
    """

    endpoint: TcpEndpoint

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        context: PodContext,
        secret: PodSecret | None = None,
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.limits = spec.limits
        self.ended = asyncio.get_running_loop().create_future()
        self.closing = False
        self._context = context
        self._name = context.pod_name(sandbox_id)
        self._directory = context.directories.sandboxes / sandbox_id
        self.workspace = self._directory / "workspace"
        self._secret = secret or PodSecret.make()
        # The address is that of the Pod, once it runs.
        self.endpoint = TcpEndpoint("", PORT, self._secret.token, tls=self._secret.tls())
        self._uid = ""
        self._pod: Pod = {}
        self._changed = asyncio.Event()
        self._deleted = asyncio.Event()
        self._record: SandboxRecord | None = None
        self._listening: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()

    @property
    def control(self) -> PodControl:
        return PodControl(self.endpoint)

    async def open(self, command: Sequence[str]) -> None:
        """Make the Pod and its Secret. Do not cancel this; it is short. Call `close` if it fails.

        Raises:
            LaunchError
        """
        context = self._context
        labels = {**context.labels, LABEL_SANDBOX: self.id}
        manifest = pod_manifest(self._name, self.spec, context.settings, labels, command)
        try:
            self.workspace.mkdir(mode=0o700, parents=True)
            self._write_record()
            pod = await context.api.create("pods", manifest)
            self._uid = str(pod["metadata"]["uid"])
            secret = secret_manifest(self._name, self._uid, self._secret, labels)
            await context.api.create("secrets", secret)
        except (OSError, KubernetesError) as error:
            raise LaunchError(f"The Pod could not be made: {error}") from error

    async def started(self) -> None:
        """Wait until the first process of the Pod listens. Raises LaunchError."""
        context = self._context
        loop = asyncio.get_running_loop()
        began = loop.time()
        address = None
        while address is None:
            passed = loop.time() - began
            if self.ended.done():
                raise LaunchError(self.ended.result().detail)
            if problem := launch_problem(self._pod):
                raise LaunchError(f"the Pod does not start: {problem}")
            why = unschedulable(self._pod)
            if why and passed > context.schedule_timeout:
                raise LaunchError(f"no node takes the Pod: {why}")
            if passed > context.start_timeout:
                phase = self._pod.get("status", {}).get("phase", "unknown to this broker")
                raise LaunchError(
                    f"the Pod does not run after {context.start_timeout:g} s; it is {phase}"
                )
            if (address := address_of(self._pod)) is None:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 1.0)
        self._listen(address)
        connecting = asyncio.create_task(answers(address, PORT))
        try:
            left = context.start_timeout - (loop.time() - began)
            either: list[asyncio.Future[Any]] = [connecting, self.ended]
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done() and not self.ended.done():
                raise LaunchError(
                    f"the Pod runs, and cannot be reached at {address}:{PORT}. The broker must reach "
                    "Pods by their addresses, through NetworkPolicies, too"
                )
        finally:
            connecting.cancel()

    def adopt(self, pod: Pod, record: SandboxRecord) -> None:
        """Go on with the Pod of an earlier broker."""
        self._uid, self._record = str(pod["metadata"]["uid"]), record
        if (address := address_of(pod)) is not None:
            self._listen(address)
        self.on_pod("MODIFIED", pod)

    def on_pod(self, change: str, pod: Pod) -> None:
        """Handle a change that the API reports."""
        if self._uid and pod["metadata"]["uid"] != self._uid:
            return
        self._pod = pod
        self._changed.set()
        end = end_of_pod(pod, self.limits)
        if change == "DELETED":
            self.on_missing(end)
        elif end is not None and not self.closing:
            self._end(end)

    def on_missing(self, end: SandboxEnd | None = None) -> None:
        """Handle that the API has no such Pod any more."""
        if self._uid:
            self._deleted.set()
            self._end(end or SandboxEnd(EndCause.SANDBOX_LOST, "the Pod was deleted from outside"))

    def look(self) -> None:
        """Ask the API whether the Pod is still there: it was not in a list."""
        if self._uid and not self._deleted.is_set():  # otherwise it is being made
            look = asyncio.create_task(self._look())
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look(self) -> None:
        try:
            self.on_pod("MODIFIED", await self._context.api.get("pods", self._name))
        except NotThere:
            self.on_missing()
        except KubernetesError as error:
            log.debug("The state of %s is unknown: %s", self._name, error)

    def remember(
        self, *, kernel_id: str | None = None, session: str | None = None, is_ready: bool = False
    ) -> None:
        if self._record is not None:
            self._record.remember(self._directory, kernel_id, session, is_ready)

    async def memory(self) -> int | None:
        return await self._measured(self.control.memory)

    async def processor_time(self) -> float | None:
        return await self._measured(self.control.processor_time)

    async def usage(self, max_files: int) -> Usage:
        try:
            return await self.control.workspace_usage(max_files)
        except TransferFailed as error:
            log.debug("The size of the workspace of %s is unknown: %s", self.id, error)
            return UNKNOWN

    async def push_files(self) -> None:
        if next(self.workspace.iterdir(), None) is None:
            return
        try:
            await self.control.send_files(self.workspace)
        except (TransferFailed, OSError) as error:
            raise LaunchError(f"the files could not be sent to the Pod: {error}") from error

    async def pull_files(self) -> None:
        limits = self.spec.limits
        new, old = self._directory / "new", self._directory / "old"
        try:
            await remove_tree(new)
            new.mkdir(mode=0o700)
            await self.control.fetch_files(
                new, 2 * limits.workspace_size, 2 * limits.workspace_files
            )
            self.workspace.rename(old)
            new.rename(self.workspace)
            await remove_tree(old)
        except (TransferFailed, OSError) as error:
            raise LaunchError(
                f"files of the Pod {self._name} could not be fetched; those remain that it had at first: "
                f"{error}"
            ) from error

    async def change_limits(self, memory: int, cpus: float) -> None:
        own = self.spec.limits
        limits = replace(own, memory=min(memory, own.memory), cpus=min(cpus, own.cpus))
        if limits != self.limits:
            await resize(
                self._context.api,
                self._name,
                replace(self.spec, limits=limits),
                self._context.settings,
            )
        self.limits = limits

    async def kill(self) -> None:
        if not self._deleted.is_set():
            await self._context.confirm()
            self.closing = True  # so that what it does to the Pod is no other end
            try:
                await self.control.kill()
            except TransferFailed as error:
                log.warning("The processes of %s are ended with its Pod: %s", self._name, error)
                await self._delete()
        self._end(SandboxEnd(EndCause.SANDBOX_LOST, "it was removed"))

    async def close(self) -> bool:
        """End the sandbox and remove everything of it. Returns whether everything is removed."""
        self.closing = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if not await self._delete():
            return False
        self._end(SandboxEnd(EndCause.SANDBOX_LOST, "it was removed"))
        return await remove_tree(self._directory)

    def leave(self) -> None:
        """Stop to listen to a Pod that goes on without this broker."""
        self.closing = True
        if self._listening is not None:
            self._listening.cancel()

    async def _delete(self) -> bool:
        """Delete the Pod, and wait until it has gone. Returns whether it has."""
        api = self._context.api
        await self._context.confirm()
        began = time.monotonic()
        try:
            while not self._deleted.is_set():
                passed = time.monotonic() - began
                await api.delete("pods", self._name, at_once=passed > _DELETED_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._deleted.wait(), _LOOK_S)
                    return True
                try:
                    pod = await api.get("pods", self._name)
                except NotThere:
                    return True
                if passed > _HELD_S:
                    held = ", ".join(pod["metadata"].get("finalizers", ())) or "an unknown cause"
                    log.error("Pod %s was deleted, but is held by %s", self._name, held)
                    return True  # its processes have ended, and its deletion goes on by itself
        except KubernetesError as error:
            log.error(
                "Pod %s could not be deleted; it is tried again when the API answers: %s",
                self._name,
                error,
            )
            return False
        return True

    @property
    def node_address(self) -> str | None:
        """The address of its node, while it is known."""
        return str(self._pod.get("status", {}).get("hostIP") or "") or None

    async def _measured(self, measure: Callable[[], Awaitable[T | None]]) -> T | None:
        if self._deleted.is_set() or not self.endpoint.host:
            return None
        try:
            return await measure()
        except TransferFailed as error:
            log.debug("What sandbox %s uses is unknown: %s", self.id, error)
            return None

    def _listen(self, address: str) -> None:
        self.endpoint = replace(self.endpoint, host=address)
        if self._listening is None:
            self._listening = asyncio.create_task(self._await_end(), name=f"end of {self._name}")

    async def _await_end(self) -> None:
        """Wait until the gateway has ended, over connections that are made again."""
        loop = asyncio.get_running_loop()
        seen = loop.time()

        def on_contact() -> None:
            nonlocal seen
            seen = loop.time()

        while not self.ended.done():
            try:
                end = await self.control.end(on_contact)
            except TransferFailed as error:
                if loop.time() - seen > self._context.unreachable_after:
                    what = f"the Pod does not answer, and its node may be lost: {error}"
                    self._end(SandboxEnd(EndCause.SANDBOX_LOST, what))
                    return
                await asyncio.wait([self.ended], timeout=_RETRY_S)
                if (address := address_of(self._pod)) is not None:  # another one after a restart
                    self.endpoint = replace(self.endpoint, host=address)
                continue
            if end.restarted:
                await asyncio.wait([self.ended], timeout=_RESTARTED_S)  # the API tells why
            if not self.closing:  # otherwise `kill` has ended it
                self._end(end_of(end.status, self.limits, end.oom, end.output))
            return

    def _end(self, end: SandboxEnd) -> None:
        if not self.ended.done():
            self.ended.set_result(end)

    def _write_record(self) -> None:
        """Write what the next broker needs, if the sandbox may live without this one."""
        if self.spec.orphan_grace:
            self._record = SandboxRecord(
                boot="", spec=self._context.digest(self.spec), grace=self.spec.orphan_grace
            )
            self.remember()
