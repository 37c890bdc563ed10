"""One sandbox of the `docker` backend: its container, its directory, and the cause of its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..kernels.endpoint import TcpEndpoint, UnixEndpoint
from .base import EndCause, LaunchError, Network, SandboxEnd, SandboxSpec, Usage
from .container_options import (
    HANDOVER_SOCKET,
    LABEL_SANDBOX,
    ContainerPlacement,
    NetworkTransport,
    SocketTransport,
    container_options,
    owner_of,
)
from .directories import remove_tree
from .docker_context import BackendContext
from .egress_socket import EgressSocket
from .engine import EngineError, Event, Missing
from .exit_reason import BY_SIGNAL, end_of, lost, was_killed
from .image_names import repository
from .internal_network import PORT, InternalNetwork
from .measured_container import MeasuredContainer
from .memory_watch import MemoryWatch
from .sandbox_layout import make_mount_points
from .sandbox_record import SandboxRecord, boot_id, digest
from .sockets import Handover, answers, listen

log = logging.getLogger(__name__)

_LATE_EVENT_S = 0.3
"""A busy engine may report the end of a container before the kill that was its cause."""


class DockerSandbox(MeasuredContainer):
    """Call `open` once, or `adopt`, then `close` until it returns True.

    Args:
        token: that of an adopted gateway in the network; a new one if None.

    Attributes:
        closing: its removal has begun.
        exit_status: of the gateway; None until it has ended and the engine has reported it.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        context: BackendContext,
        runtime: str,
        network: InternalNetwork | None,
        *,
        gvisor: bool,
        token: str | None = None,
    ) -> None:
        directories = context.directories
        self.id = sandbox_id
        self.spec = spec
        self.limits = spec.limits
        self.ended = asyncio.get_running_loop().create_future()
        self.closing = False
        self.exit_status: int | None = None
        self._context = context
        self._runtime = runtime
        self._directory = directories.sandboxes / sandbox_id
        self.workspace = self._directory / "workspace"
        transport: SocketTransport | NetworkTransport
        if network is None:
            self.endpoint = UnixEndpoint(directories.run / f"{sandbox_id}.sock", context.epoch)
            transport = SocketTransport(directories.run / f"{sandbox_id}.give")
        else:
            transport = NetworkTransport(network.name, token or secrets.token_urlsafe(24))
            # The engine assigns the address at the start.
            self.endpoint = TcpEndpoint("", PORT, transport.token)
        self._placement = ContainerPlacement(
            name=context.container_name(sandbox_id),
            transport=transport,
            workspace=self.workspace,
            owner=context.owner if spec.project is None else owner_of(spec.project, gvisor=gvisor),
            labels=context.labels | {LABEL_SANDBOX: sandbox_id},
            gvisor=gvisor,
        )
        self._record: SandboxRecord | None = None
        self._handover: Handover | None = None
        self._memory_watch = MemoryWatch(self, self._end_over_memory)
        self._out_of_memory = False
        self._signals: set[str] = set()  # that it has received
        self._signalled = asyncio.Event()
        self._created = False
        self._killed = False
        self._looks: set[asyncio.Task[None]] = set()

    async def open(self, command: Sequence[str]) -> None:
        """Start the sandbox. Do not cancel this; it is short. Call `close` if it fails.

        Raises:
            LaunchError
        """
        context, spec, placement = self._context, self.spec, self._placement
        try:
            self._make_directories()
            if isinstance(placement.transport, NetworkTransport) and (
                spec.network is not Network.NONE or spec.uses_proxy
            ):
                raise LaunchError(
                    f"The template {spec.template} needs the network {spec.network} or upstreams, which "
                    "only sandboxes over unix sockets support: see docker.transport in docs/network.md"
                )
            if spec.uses_proxy:
                path = context.directories.run / f"{self.id}.out"
                self._egress_socket = EgressSocket(
                    context.proxy, path, placement.owner, self.id, spec
                )
                placement = replace(placement, egress_socket=path)
            if spec.network is Network.OPEN:
                placement = replace(placement, network=await context.open_network.name())
            self._hand_over()
            self._write_record()
            options = container_options(
                spec, placement, image=context.image, runtime=self._runtime, command=command
            )
            await context.engine.create(placement.name, options)
            self._created = True
            await context.engine.start(placement.name)
            if isinstance(placement.transport, NetworkTransport):
                host = await context.engine.address(placement.name, placement.transport.network)
                self.endpoint = TcpEndpoint(host, PORT, placement.transport.token)
        except Missing as error:
            image = self.spec.image or context.image
            raise LaunchError(
                f"The container could not be started: {error}. Build or pull {image}"
            ) from error
        except (OSError, EngineError) as error:
            raise LaunchError(f"The container could not be started: {error}") from error

    @classmethod
    def adopt(
        cls,
        sandbox_id: str,
        spec: SandboxSpec,
        context: BackendContext,
        mode: tuple[str, InternalNetwork | None, bool],
        record: SandboxRecord,
        address: tuple[str, str],
    ) -> DockerSandbox:
        """Return a sandbox of an earlier broker, to whose gateway the connections are handed over.

        Args:
            mode: the runtime, the network, and whether it is gVisor.
            address: the gateway's host and token in the network; empty without one.

        Raises:
            OSError, LaunchError: the sockets could not be made.
        """
        runtime, network, gvisor = mode
        host, token = address
        sandbox = cls(sandbox_id, spec, context, runtime, network, gvisor=gvisor, token=token)
        if network is not None:
            sandbox.endpoint = TcpEndpoint(host, PORT, token, context.epoch)
        sandbox._hand_over()
        sandbox._record = record
        sandbox._created = True
        sandbox.look()  # it may have ended meanwhile
        return sandbox

    def remember(
        self, *, kernel_id: str | None = None, session: str | None = None, is_ready: bool = False
    ) -> None:
        if self._record is not None:
            self._record.remember(self._directory, kernel_id, session, is_ready)

    @staticmethod
    def digest(spec: SandboxSpec, image: str, runtime: str, *, tcp: bool) -> str:
        """The same for all sandboxes that one broker may adopt from the other."""
        # Without the tag: an image of another version may do, if its contract is the same.
        spec, image = replace(spec, image=None), repository(spec.image or image)
        return digest(spec, image, runtime, "tcp" if tcp else "unix")

    def _hand_over(self) -> None:
        """Listen for the broker's connections and for the gateway, instead of an earlier broker."""
        transport = self._placement.transport
        if isinstance(transport, SocketTransport) and isinstance(self.endpoint, UnixEndpoint):
            transport.handover.mkdir(exist_ok=True)
            transport.handover.chmod(0o755)  # nobody else on the host gets to it
            socket = transport.handover / HANDOVER_SOCKET
            for path in (self.endpoint.path, socket):
                path.unlink(missing_ok=True)
            listener = listen(self.endpoint.path)
            self._handover = Handover(socket, listener, self._placement.owner)

    def _write_record(self) -> None:
        """Write what the next broker needs, if the sandbox may live without this one."""
        if self.spec.orphan_grace:
            tcp = isinstance(self.endpoint, TcpEndpoint)
            digest = self.digest(self.spec, self._context.image, self._runtime, tcp=tcp)
            self._record = SandboxRecord(boot=boot_id(), spec=digest, grace=self.spec.orphan_grace)
            self.remember()

    async def stats(self) -> Mapping[str, Any]:
        return await self._context.engine.stats(self._placement.name)

    def ran_out_of_memory(self) -> bool:
        return self._out_of_memory

    async def change_limits(self, memory: int, cpus: float) -> None:
        own = self.spec.limits
        limits = replace(own, memory=min(memory, own.memory), cpus=min(cpus, own.cpus))
        if not self._placement.gvisor:
            await self._context.engine.change_limits(self._placement.name, limits)
        elif limits.cpus != own.cpus:
            raise LaunchError("gVisor cannot lower the processors of a container that runs")
        else:
            self._memory_watch.start()
        self.limits = limits

    async def _end_over_memory(self) -> None:
        self._end(end_of(None, self.limits, True, ""))
        await self.kill()

    async def usage(self, max_files: int) -> Usage:
        return await self._context.meter.measure(self.workspace, max_files)

    async def kill(self) -> None:
        await self._remove_container()  # the files are in a directory of the host, and stay

    async def listening(self) -> None:
        """Wait until the gateway listens over TCP, or has ended. A unix socket always listens."""
        if isinstance(self.endpoint, TcpEndpoint) and self.endpoint.host:
            waiting = asyncio.create_task(answers(self.endpoint.host, self.endpoint.port))
            self.ended.add_done_callback(lambda _: waiting.cancel())
            try:
                await asyncio.wait([waiting])
            finally:
                waiting.cancel()

    async def close(self) -> bool:
        """End the sandbox and remove everything of it. Returns whether everything is removed."""
        self.closing = True
        self._memory_watch.stop()
        if not await self._remove_container():
            return False
        if isinstance(self.endpoint, UnixEndpoint):
            self.endpoint.path.unlink(missing_ok=True)
        if self._handover is not None:
            await self._handover.closed()
        if isinstance(self._placement.transport, SocketTransport):
            with contextlib.suppress(OSError):
                self._placement.transport.handover.rmdir()
        if self._egress_socket is not None:
            await self._egress_socket.close()
        return await remove_tree(self._directory)

    async def _remove_container(self) -> bool:
        """End all its processes. Returns whether they have ended."""
        await self._context.confirm()
        self._killed = True
        try:
            await self._context.engine.remove(self._placement.name)
        except EngineError as error:
            log.error(
                "Sandbox %s could not be removed; it is tried again when the engine answers: %s",
                self.id,
                error,
            )
            self._killed = False
            return False
        if self._looks:
            await asyncio.wait(self._looks)
        self._end(SandboxEnd(EndCause.SANDBOX_LOST, "it was removed"))
        return True

    def leave(self) -> None:
        """Close the sockets of a sandbox that goes on without this broker."""
        self._memory_watch.stop()
        if self._handover is not None:
            self._handover.close()

    async def output_tail(self) -> str:
        """Return the end of its output, for messages to the operator."""
        try:
            return await self._context.engine.output_tail(self._placement.name)
        except EngineError as error:
            return str(error)

    def on_event(self, event: Event) -> None:
        """Handle an event of the container."""
        match event.get("Action"):
            case "oom":
                self._out_of_memory = True
            case "kill":
                self._signals.add(str(event["Actor"]["Attributes"].get("signal")))
                self._signalled.set()
            case "pause":
                self._end(lost("was paused from outside"))
            case "die" | "destroy" | "remove":  # "remove" is Podman's
                self.look()

    def look(self, *, after_gap: bool = False) -> None:
        """Ask the engine whether the container has ended, and how."""
        if self._created and not self._killed and not self.ended.done():
            look = asyncio.create_task(self._look(after_gap))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look(self, after_gap: bool) -> None:
        engine, name = self._context.engine, self._placement.name
        try:
            state = await engine.state(name)
            if state["Status"] in ("running", "created"):
                return
            self.exit_status = int(state["ExitCode"])
            output = await self.output_tail()
        except Missing:
            self._end(lost("was removed from outside"))
        except EngineError as error:
            log.warning("The state of sandbox %s is unknown: %s", self.id, error)
            if not after_gap:
                self._end(lost("ended, and the engine does not report how"))
        else:
            out_of_memory = self._out_of_memory or bool(state.get("OOMKilled"))
            if self.exit_status > BY_SIGNAL and not self._signals and not out_of_memory:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._signalled.wait(), _LATE_EVENT_S)
            if was_killed(self.exit_status, self._signals) and not out_of_memory:
                self._end(lost("was killed from outside"))
            elif after_gap and not out_of_memory:
                self._end(lost("ended while the engine could not be reached"))
            else:
                self._end(end_of(self.exit_status, self.limits, out_of_memory, output))

    def _end(self, end: SandboxEnd) -> None:
        if self._handover is not None:
            self._handover.close()  # closes connections that wait in the socket's queue
        if not self.ended.done():
            self.ended.set_result(end)

    def _make_directories(self) -> None:
        self._directory.mkdir(mode=0o700)
        self.workspace.mkdir(mode=0o700)
        make_mount_points(self.workspace, self.spec)
        owner = self._placement.owner
        os.chown(self.workspace, owner, owner)
