"""One sandbox of the `docker` backend: its container, its directory, and how it ended."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from kernelbroker_kernel.contract import EXIT_GATEWAY_FAILED

from ..kernels.endpoint import UnixEndpoint
from .base import EndCause, LaunchError, SandboxEnd, SandboxSpec
from .cgroups import memory_in_use
from .container_options import (
    LABEL_BROKER,
    LABEL_DATA,
    LABEL_SANDBOX,
    Place,
    container_options,
)
from .directories import Directories, remove_tree
from .ends import end_of
from .engine import Engine, EngineError, Event, Missing
from .roster import OwnSandbox
from .sockets import Handover, listen

log = logging.getLogger(__name__)


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


class DockerSandbox(OwnSandbox):
    """`open` it once, then `close` it until that says that everything is gone.

    Attributes:
        closing: somebody wants it gone.
        exit_status: the gateway's, once it has ended and the engine has told.
    """

    endpoint: UnixEndpoint

    def __init__(self, sandbox_id: str, spec: SandboxSpec, ground: Ground, runtime: str) -> None:
        directories = ground.directories
        self.id = sandbox_id
        self.spec = spec
        self.endpoint = UnixEndpoint(directories.run / f"{sandbox_id}.sock")
        self.ended = asyncio.get_running_loop().create_future()
        self.closing = False
        self.exit_status: int | None = None
        self._ground = ground
        self._runtime = runtime
        self._directory = directories.sandboxes / sandbox_id
        self.workspace = self._directory / "workspace"
        self._place = Place(
            name=f"kernelbroker-{directories.broker_id}-{sandbox_id}",
            handover=directories.run / f"{sandbox_id}.give",
            workspace=self.workspace,
            owner=ground.owner,
            labels={
                LABEL_BROKER: directories.broker_id,
                LABEL_DATA: str(directories.data.parent),
                LABEL_SANDBOX: sandbox_id,
            },
        )
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
        ground, place = self._ground, self._place
        options = container_options(
            self.spec, place, image=ground.image, runtime=self._runtime, command=command
        )
        try:
            self._make_directories()
            listener = listen(self.endpoint.path)
            self._handover = Handover(place.handover, listener, ground.owner)
            await ground.engine.create(place.name, options)
            self._created = True
            await ground.engine.start(place.name)
        except (OSError, EngineError) as error:
            raise LaunchError(f"The container could not be started: {error}") from error

    async def memory(self) -> int | None:
        try:
            told = await self._ground.engine.memory(self._place.name)
        except EngineError as error:
            log.debug("How much memory sandbox %s uses is not known: %s", self.id, error)
            return None
        return memory_in_use(told["usage"], told["stats"]) if "stats" in told else None

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
        self.endpoint.path.unlink(missing_ok=True)
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
            case "die" | "destroy":
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
            failed = self.exit_status == EXIT_GATEWAY_FAILED
            output = await self.output_tail() if failed else ""
        except Missing:
            self._end(_lost("was removed from outside"))
        except EngineError as error:
            log.warning("How sandbox %s fares is not known: %s", self.id, error)
            if not after_gap:
                self._end(_lost("ended, and the engine does not tell how"))
        else:
            out_of_memory = self._out_of_memory or bool(state.get("OOMKilled"))
            if str(self.exit_status - 128) in self._signals and not out_of_memory:
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
