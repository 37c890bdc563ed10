"""The `kubernetes` backend: each sandbox is a Pod of one namespace.

The broker reaches Pods by their addresses, over TLS. One watch tells what happens to them; after a gap it
lists them all. If the API is away, running sandboxes are used further, since their Pods tell their end
themselves. If the broker dies, its Pods end after their grace, or the next broker adopts them
(`pod_orphans.py`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .base import (
    Backend,
    BackendUnavailable,
    Isolation,
    LaunchError,
    Network,
    Orphan,
    Rescue,
    Sandbox,
    SandboxSpec,
)
from .directories import Directories
from .kubernetes_api import KubernetesApi, KubernetesError
from .kubernetes_check import ENFORCED, NetworkCheck
from .kubernetes_sandbox import KubernetesSandbox
from .pod_context import PodContext
from .pod_manifest import LABEL_BROKER, LABEL_DATA, LABEL_SANDBOX, PodSettings
from .pod_orphans import PodOrphans
from .pod_status import Pod
from .pod_watch import PodWatch
from .sandbox_layout import GATEWAY_COMMAND
from .sandbox_set import SandboxSet
from .startup_check import RunCell, run_cell

log = logging.getLogger(__name__)

_NOT_TRIED = "not tried"
_DATA_ID = ".kubernetes-id"
"""In `data_dir`: its name in the cluster, where other brokers have directories of the same path."""


class KubernetesBackend(Backend):
    """Runs sandboxes as Pods.

    Args:
        settings: what all Pods have.
        data_dir: the directory of workspaces while no Pod has them, with a subdirectory for each broker.
        kubeconfig, context, namespace: see `KubernetesApi`.
        start_timeout, schedule_timeout: see `PodContext`.
        require_policies: refuse sandboxes without a network if nothing keeps Pods off the network.
        command: the arguments of the image's Python, before the gateway's options.
        run_cell: runs the cell of the check at startup; it must fit the command.
        id_file: has the broker's id for the next broker, which adopts the sandboxes that live without this
            one; None if none do.
    """

    isolation = Isolation.CONTAINER
    networks = frozenset({Network.NONE, Network.OPEN})
    browser_problem = "the backend kubernetes has no sandboxes with a browser"

    def __init__(
        self,
        *,
        settings: PodSettings,
        data_dir: Path,
        kubeconfig: Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
        start_timeout: float = 60.0,
        schedule_timeout: float = 15.0,
        require_policies: bool = True,
        command: Sequence[str] = GATEWAY_COMMAND,
        run_cell: RunCell = run_cell,
        id_file: Path | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._settings = settings
        self._api = KubernetesApi(kubeconfig, context, namespace)
        self._timeouts = {"start_timeout": start_timeout, "schedule_timeout": schedule_timeout}
        self._require_policies = require_policies
        self._command = command
        self._run_cell = run_cell
        self._id_file = id_file
        self._version = ""
        self._policies = _NOT_TRIED
        self._context: PodContext | None = None
        self._orphans: PodOrphans | None = None
        self._watch: PodWatch | None = None
        self._later: asyncio.Task[None] | None = None
        self._sandboxes: SandboxSet[KubernetesSandbox] = SandboxSet()
        self._removals: set[asyncio.Task[None]] = set()
        if re.search("gvisor|runsc", settings.runtime_class or "", re.IGNORECASE):
            self.isolation = Isolation.GVISOR

    async def start(self, rescue: Rescue | None = None) -> None:
        api = self._api
        try:
            self._version = await api.connect()
            await api.list("pods", f"{LABEL_BROKER}=none")
        except KubernetesError as error:
            await api.close()
            raise BackendUnavailable(
                f"Kubernetes cannot be used: {error}. Set kubernetes.kubeconfig, or run the broker in a "
                "Pod whose service account may use pods and secrets of its namespace. See "
                "docs/kubernetes.md."
            ) from error
        try:
            directories = Directories.open(self.data_dir, self.data_dir, self._id_file)
            data_id = _data_id(self.data_dir)
        except OSError as error:
            await api.close()
            raise BackendUnavailable(f"kubernetes.data_dir cannot be used: {error}") from error
        self._context = context = PodContext(
            api, directories, self._settings, data_id, confirm=self.confirm, **self._timeouts
        )
        try:
            if (pause := await self._reap(context, rescue)) > 0:
                self._later = asyncio.create_task(self._reap_later(pause, rescue))
            self._orphans = PodOrphans(context)
            await self._orphans.find()
            labels = f"{LABEL_BROKER}={directories.broker_id}"
            self._watch = PodWatch(api, labels, self._on_pod, self._on_list)
            await self._watch.start()
            check = NetworkCheck(self._launch, self.remove, self._run_cell, api.address)
            self._policies = await check.run()
        except KubernetesError as error:
            await self.stop()
            raise BackendUnavailable(f"The Kubernetes API failed: {error}") from error
        except BaseException:
            await self.stop()
            raise
        if self._policies != ENFORCED:
            log.warning("Nothing keeps Pods off the network: see docs/kubernetes.md")

    def orphans(self, specs: Sequence[SandboxSpec]) -> Sequence[Orphan]:
        assert self._orphans is not None, "start() comes first"
        found = self._orphans.adopt(specs)
        for sandbox, _ in found:
            self._sandboxes.adopt(sandbox)
        return [
            Orphan(sandbox, record.kernel_id, record.session)
            for sandbox, record in found
            if record.kernel_id is not None
        ]

    async def end_orphans(self, unwanted: Sequence[Sandbox], rescue: Rescue | None = None) -> None:
        assert self._orphans is not None, "start() comes first"
        await asyncio.gather(*(sandbox.kill() for sandbox in unwanted))
        try:
            await self._orphans.end(rescue)
        except KubernetesError as error:
            log.error("Pods of an earlier broker could not be deleted: %s", error)
        for sandbox in unwanted:  # their files are rescued
            await self.remove(sandbox)

    def require_network(self, spec: SandboxSpec) -> None:
        super().require_network(spec)
        if (
            self._require_policies
            and spec.network is Network.NONE
            and self._policies not in (ENFORCED, _NOT_TRIED)
        ):
            raise LaunchError(
                f'the template {spec.template} has network = "none", but NetworkPolicies are '
                f"{self._policies}. Use a network plugin that enforces them, with the policies of "
                "docs/kubernetes.md; or, if no untrusted code runs there, set "
                "kubernetes.require_network_policies = false"
            )

    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> KubernetesSandbox:
        self.require_network(spec)
        return await self._launch(sandbox_id, spec)

    async def _launch(self, sandbox_id: str, spec: SandboxSpec) -> KubernetesSandbox:
        if self._context is None:
            raise LaunchError("The backend is not running")
        sandbox = KubernetesSandbox(sandbox_id, spec, self._context)
        await self._sandboxes.launch(sandbox, sandbox.open(self._command))
        try:
            await sandbox.started()
        except BaseException:
            await self.remove(sandbox)
            raise
        return sandbox

    async def remove(self, sandbox: Sandbox) -> None:
        await self._sandboxes.remove(sandbox)

    async def stop(self) -> None:
        await self._stop(lambda _: True)

    async def leave(self) -> None:
        """As `stop`, but leave the sandboxes that outlive the broker to the next one."""
        await self._stop(lambda sandbox: not sandbox.spec.orphan_grace)

    async def _stop(self, is_removed: Callable[[KubernetesSandbox], bool]) -> None:
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])
        context, self._context = self._context, None  # refuse further launches
        if context is None:
            return
        sandboxes = self._sandboxes.by_id
        await asyncio.gather(*(self.remove(s) for s in list(sandboxes.values()) if is_removed(s)))
        await self._sandboxes.removals()
        if self._watch is not None:
            await self._watch.stop()
        left = [sandbox for sandbox in sandboxes.values() if not is_removed(sandbox)]
        for sandbox in left:
            sandbox.leave()
        await context.api.close()
        if left or sandboxes or (self._orphans is not None and self._orphans.left):
            context.directories.release()  # the next broker finds them
        else:
            await context.directories.remove()

    def describe(self) -> dict[str, object]:
        return {
            "backend": "kubernetes",
            "isolation": self.isolation.value,
            "version": self._version,
            "namespace": self._api.namespace,
            "runtime_class": self._settings.runtime_class,
            "image": self._settings.image,
            "api": "away" if self._watch is not None and self._watch.is_away else "answers",
            "network_policies": self._policies,
            "seccomp": "gVisor's own" if self.isolation is Isolation.GVISOR else "RuntimeDefault",
            "networks": sorted(self.networks),
            "limits": {
                "cpus": "kubelet",
                "memory": "kubelet",
                "processes": "node",  # the kubelet's podPidsLimit; a Pod cannot name one
                "tmp_size": "tmpfs",
                "open_files": "rlimit",
                "workspace": "watched",
            },
        }

    def _on_pod(self, change: str, pod: Pod) -> None:
        sandbox_id = str(pod["metadata"]["labels"].get(LABEL_SANDBOX))
        if (sandbox := self._sandboxes.by_id.get(sandbox_id)) is not None:
            sandbox.on_pod(change, pod)

    def _on_list(self, pods: Sequence[Pod]) -> None:
        """Handle all Pods at once, after a gap in which changes were missed."""
        there = set()
        for pod in pods:
            there.add(str(pod["metadata"]["labels"].get(LABEL_SANDBOX)))
            self._on_pod("MODIFIED", pod)
        for sandbox in list(self._sandboxes.by_id.values()):
            if sandbox.id not in there:
                sandbox.look()
            if sandbox.closing:  # an earlier attempt may have failed without the API
                removal = asyncio.create_task(self.remove(sandbox))
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)

    async def _reap_later(self, pause: float, rescue: Rescue | None) -> None:
        """End what nobody has adopted within its grace."""
        while pause > 0:
            await asyncio.sleep(pause)
            assert self._context is not None, "stop() cancels this first"
            try:
                pause = await self._reap(self._context, rescue)
            except KubernetesError as error:
                log.error("Pods of dead brokers could not be deleted: %s", error)

    async def _reap(self, context: PodContext, rescue: Rescue | None) -> float:
        """Delete the Pods of dead brokers, and then their directories.

        The lock on a broker's directory shows whether the broker is dead.

        Returns:
            the seconds after which to call it again, for Pods that may still be adopted.
        """
        data_dir = context.directories.data.parent
        postponed: list[float] = []
        dead = {each.broker_id: each for each in context.directories.of_the_dead(postponed)}
        pods, _ = await context.api.list("pods", f"{LABEL_DATA}={context.data_id}")
        deleting: list[Any] = []
        for pod in pods:
            broker_id = str(pod["metadata"]["labels"][LABEL_BROKER])
            if broker_id in dead or not (data_dir / broker_id).exists():
                log.info("Deleting a Pod that the broker %s left behind", broker_id)
                name = str(pod["metadata"]["name"])
                deleting.append(context.api.delete_and_wait("pods", name))
        await asyncio.gather(*deleting)
        for directories in dead.values():
            if rescue is None or await asyncio.to_thread(rescue, directories.data):
                await directories.remove()
        return max(postponed, default=0.0)


def _data_id(data_dir: Path) -> str:
    """Return the id of the directory; the first broker makes it. Raises OSError."""
    path = data_dir / _DATA_ID
    new = path.with_name(f"{_DATA_ID}-{secrets.token_hex(4)}")
    new.write_text(secrets.token_hex(8))
    try:
        path.hardlink_to(new)
    except FileExistsError:
        pass
    finally:
        new.unlink()
    return path.read_text()
