"""A backend whose sandboxes are directories and scripted gateways in the test's process."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kernelbroker_server.backends.base import (
    Backend,
    EndCause,
    Isolation,
    Rescue,
    Sandbox,
    SandboxEnd,
    SandboxSpec,
    Usage,
)
from kernelbroker_server.backends.usage import measure
from kernelbroker_server.kernels.endpoint import UnixEndpoint

from .gateway import Cell, Gateway, Script
from .waiting import broker_tasks, turns


class FakeSandbox(Sandbox):
    """A sandbox with the directories of the local backend: the workspace is removed with the sandbox."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, root: Path, scripts: dict[str, Script]
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.limits = spec.limits
        self.directory = root / "sandboxes" / sandbox_id
        self.workspace = self.directory / "workspace"
        self.endpoint = UnixEndpoint(root / f"{sandbox_id}.sock")
        self.ended = asyncio.get_running_loop().create_future()
        self.gateway = Gateway(self.endpoint.path, scripts)
        self.memory_used: int | None = 0
        self.out_of_memory = False
        self.has_network = True

    async def memory(self) -> int | None:
        return self.memory_used

    def ran_out_of_memory(self) -> bool:
        return self.out_of_memory

    async def change_limits(self, memory: int, cpus: float) -> None:
        self.limits = dataclasses.replace(self.limits, memory=memory, cpus=cpus)

    async def cut_network(self) -> None:
        self.has_network = False

    async def usage(self, max_files: int) -> Usage:
        return await asyncio.to_thread(measure, self.workspace, max_files)

    async def kill(self) -> None:
        await self.die(EndCause.SANDBOX_LOST, "it was killed")

    async def die(self, cause: EndCause = EndCause.KERNEL_DIED, detail: str = "it died") -> None:
        """End without a call of `remove`."""
        if not self.ended.done():
            self.ended.set_result(SandboxEnd(cause, detail))
        await self.gateway.stop()


class FakeBackend(Backend):
    """A backend of fake sandboxes.

    Attributes:
        scripts: what cells do, in all sandboxes.
        live: the running sandboxes, by id.
        launched: the number of launches that have begun.
        on_launch: awaited in each launch; it may raise LaunchError, or prepare the sandbox.
    """

    isolation = Isolation.PROCESS

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data_dir = root
        self.scripts: dict[str, Script] = {"die": self._die}
        self.live: dict[str, FakeSandbox] = {}
        self.launched = 0
        self.on_launch: Callable[[FakeSandbox], Awaitable[None]] | None = None
        (root / "sandboxes").mkdir()

    async def start(self, rescue: Rescue | None = None) -> None:
        pass

    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> FakeSandbox:
        self.launched += 1
        sandbox = FakeSandbox(sandbox_id, spec, self.root, self.scripts)
        sandbox.workspace.mkdir(parents=True)
        self.live[sandbox_id] = sandbox
        try:
            await asyncio.sleep(0)
            if self.on_launch is not None:
                await self.on_launch(sandbox)
            sandbox.gateway.start()
            await asyncio.sleep(0)
        except BaseException:
            await self.remove(sandbox)
            raise
        return sandbox

    async def remove(self, sandbox: Sandbox) -> None:
        fake = self.live.get(sandbox.id)
        if fake is not sandbox or fake is None:
            return
        await fake.die(EndCause.SANDBOX_LOST, "it was removed")
        shutil.rmtree(fake.directory)
        self.live.pop(sandbox.id, None)

    async def stop(self) -> None:
        for sandbox in list(self.live.values()):
            await self.remove(sandbox)

    def describe(self) -> dict[str, object]:
        return {"backend": "fake"}

    @property
    def cells(self) -> list[Cell]:
        """The code that the running sandboxes have executed, without internal cells."""
        cells = [cell for sandbox in self.live.values() for cell in sandbox.gateway.cells]
        return [cell for cell in cells if not cell.content["silent"]]

    async def _die(self, cell: Cell) -> None:
        for sandbox in self.live.values():
            if sandbox.gateway is cell.kernel:
                cell.kernel.spawn(asyncio.shield(asyncio.ensure_future(sandbox.die())))
                await asyncio.Event().wait()


@asynccontextmanager
async def fake_backend() -> AsyncIterator[FakeBackend]:
    """A backend in a temporary directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        backend = FakeBackend(Path(directory))
        try:
            yield backend
        finally:
            await backend.stop()


@asynccontextmanager
async def spotless_backend() -> AsyncIterator[FakeBackend]:
    """A backend that must have no sandbox, pool task or session left at the end."""
    async with fake_backend() as backend:
        yield backend
        await turns(20)
        assert backend.live == {}
        assert broker_tasks() == set()
        assert list((backend.root / "sandboxes").iterdir()) == []
