"""One sandbox of the `docker` backend: its container, its directory, and how it ended."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..egress.proxy import Proxy
from ..kernels.endpoint import TcpEndpoint, UnixEndpoint
from .base import EndCause, LaunchError, Network, SandboxEnd, SandboxSpec
from .cgroups import memory_in_use
from .container_options import (
    LABEL_BROKER,
    LABEL_DATA,
    LABEL_SANDBOX,
    OnNetwork,
    OnSocket,
    Place,
    container_options,
)
from .directories import Directories, remove_tree
from .ends import end_of
from .engine import Engine, EngineError, Event, Missing
from .internal_network import PORT, InternalNetwork
from .open_network import OpenNetwork
from .roster import OwnSandbox
from .sockets import Handover, listen
from .way_out import WayOut

log = logging.getLogger(__name__)

_POLL_S = 0.02
_KILL_OF_ANY_SIGNAL = "None"
"""Podman tells of a kill, but not of its signal."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all containers of one broker stand on.

    Attributes:
        owner: who user code is, in the container and on the host.
    """

    engine: Engine
    directories: Directories
    image: str
    owner: int
    proxy: Proxy
    open_network: OpenNetwork

    @property
    def labels(self) -> dict[str, str]:
        """By which what this broker made is found when it is dead."""
        return {
            LABEL_BROKER: self.directories.broker_id,
            LABEL_DATA: str(self.directories.data.parent),
        }


class DockerSandbox(OwnSandbox):
    """`open` it once, then `close` it until that says that everything is gone.

    Attributes:
        closing: somebody wants it gone.
        exit_status: the gateway's, once it has ended and the engine has told.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        ground: Ground,
        runtime: str,
        network: InternalNetwork | None,
    ) -> None:
        directories = ground.directories
        self.id = sandbox_id
        self.spec = spec
        self.ended = asyncio.get_running_loop().create_future()
        self.closing = False
        self.exit_status: int | None = None
        self._ground = ground
        self._runtime = runtime
        self._directory = directories.sandboxes / sandbox_id
        self.workspace = self._directory / "workspace"
        way: OnSocket | OnNetwork
        if network is None:
            self.endpoint = UnixEndpoint(directories.run / f"{sandbox_id}.sock")
            way = OnSocket(directories.run / f"{sandbox_id}.give")
        else:
            way = OnNetwork(network.name, secrets.token_urlsafe(24))
            self.endpoint = TcpEndpoint("", PORT, way.token)  # its address comes with its start
        self._place = Place(
            name=f"kernelbroker-{directories.broker_id}-{sandbox_id}",
            way=way,
            workspace=self.workspace,
            owner=ground.owner,
            labels=ground.labels | {LABEL_SANDBOX: sandbox_id},
        )
        self._way_out: WayOut | None = None
        self._handover: Handover | None = None
        self._out_of_memory = False
        self._signals: set[str] = set()  # sent to it from outside
        self._created = False
        self._looks: set[asyncio.Task[None]] = set()

    async def open(self, command: Sequence[str]) -> None:
        """Start it. Not to be cancelled; it is short. Whatever it raises, `close` is called next.

        Raises:
            LaunchError
        """
        ground, spec, place = self._ground, self.spec, self._place
        try:
            self._make_directories()
            if isinstance(place.way, OnNetwork) and spec.network is not Network.NONE:
                raise LaunchError(
                    f"The template {spec.template} wants the network {spec.network}, which only "
                    "sandboxes have that are reached over unix sockets: see docs/network.md"
                )
            if spec.network is Network.ALLOWLIST:
                path = ground.directories.run / f"{self.id}.out"
                self._way_out = WayOut(ground.proxy, path, ground.owner, self.id, spec)
                place = replace(place, way_out=path)
            elif spec.network is Network.OPEN:
                place = replace(place, network=await ground.open_network.name())
            options = container_options(
                spec, place, image=ground.image, runtime=self._runtime, command=command
            )
            if isinstance(place.way, OnSocket) and isinstance(self.endpoint, UnixEndpoint):
                listener = listen(self.endpoint.path)
                self._handover = Handover(place.way.handover, listener, ground.owner)
            await ground.engine.create(place.name, options)
            self._created = True
            await ground.engine.start(place.name)
            if isinstance(place.way, OnNetwork):
                host = await ground.engine.address(place.name, place.way.network)
                self.endpoint = TcpEndpoint(host, PORT, place.way.token)
        except Missing as error:
            image = self.spec.image or ground.image
            raise LaunchError(
                f"The container could not be started: {error}. Build or pull {image}"
            ) from error
        except (OSError, EngineError) as error:
            raise LaunchError(f"The container could not be started: {error}") from error

    async def memory(self) -> int | None:
        try:
            told = await self._ground.engine.memory(self._place.name)
        except EngineError as error:
            log.debug("How much memory sandbox %s uses is not known: %s", self.id, error)
            return None
        return memory_in_use(told["usage"], told["stats"]) if "stats" in told else None

    async def listening(self) -> None:
        """Wait until to connect is not too early, or it has ended. A unix socket waits by itself."""
        if isinstance(self.endpoint, TcpEndpoint) and self.endpoint.host:
            answers = asyncio.create_task(_answers(self.endpoint.host, self.endpoint.port))
            self.ended.add_done_callback(lambda _: answers.cancel())
            try:
                await asyncio.wait([answers])
            finally:
                answers.cancel()

    async def close(self) -> bool:
        """End it and remove all that belongs to it; tells whether everything is gone."""
        self.closing = True
        try:
            await self._ground.engine.remove(self._place.name)
        except EngineError as error:
            log.error("Sandbox %s could not be removed; its remains are kept: %s", self.id, error)
            return False
        if self._looks:
            await asyncio.wait(self._looks)
        self._end(SandboxEnd(EndCause.SANDBOX_LOST, "it was removed"))
        if isinstance(self.endpoint, UnixEndpoint):
            self.endpoint.path.unlink(missing_ok=True)
        if self._way_out is not None:
            await self._way_out.close()
        return await remove_tree(self._directory)

    async def output_tail(self) -> str:
        """The last of what it wrote, for messages to whoever runs the broker."""
        try:
            return await self._ground.engine.output_tail(self._place.name)
        except EngineError as error:
            return str(error)

    def on_event(self, event: Event) -> None:
        """What the engine tells of the container."""
        match event.get("Action"):
            case "oom":
                self._out_of_memory = True
            case "kill":
                self._signals.add(str(event["Actor"]["Attributes"].get("signal")))
            case "pause":
                self._end(_lost("was paused from outside"))
            case "die" | "destroy" | "remove":  # as Podman calls it
                self.look()

    def look(self, *, after_gap: bool = False) -> None:
        """Find out from the engine whether it has ended, and how."""
        if self._created and not self.ended.done():
            look = asyncio.create_task(self._look(after_gap))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look(self, after_gap: bool) -> None:
        engine, name = self._ground.engine, self._place.name
        try:
            state = await engine.state(name)
            if state["Status"] in ("running", "created"):
                return
            self.exit_status = int(state["ExitCode"])
            output = await self.output_tail()
        except Missing:
            self._end(_lost("was removed from outside"))
        except EngineError as error:
            log.warning("How sandbox %s fares is not known: %s", self.id, error)
            if not after_gap:
                self._end(_lost("ended, and the engine does not tell how"))
        else:
            out_of_memory = self._out_of_memory or bool(state.get("OOMKilled"))
            ours = {str(self.exit_status - 128), _KILL_OF_ANY_SIGNAL}
            if self.exit_status > 128 and self._signals & ours and not out_of_memory:
                self._end(_lost("was killed from outside"))
            elif after_gap and not out_of_memory:
                self._end(_lost("ended while the engine could not be reached"))
            else:
                self._end(end_of(self.exit_status, self.spec.limits, out_of_memory, output))

    def _end(self, end: SandboxEnd) -> None:
        if self._handover is not None:
            self._handover.close()  # whoever still waits in the socket's queue is let go
        if not self.ended.done():
            self.ended.set_result(end)

    def _make_directories(self) -> None:
        self._directory.mkdir(mode=0o700)
        self.workspace.mkdir(mode=0o700)
        if self.spec.shared_data is not None:
            (self.workspace / "shared").mkdir()
        os.chown(self.workspace, self._ground.owner, self._ground.owner)


def _lost(what: str) -> SandboxEnd:
    return SandboxEnd(EndCause.SANDBOX_LOST, f"the container {what}")


async def _answers(host: str, port: int) -> None:
    """Wait until somebody listens there; nothing tells but to try."""
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return
