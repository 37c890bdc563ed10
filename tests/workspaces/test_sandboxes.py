"""Workspaces with real sandboxes: an application on the host shares their files, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from kernelbroker_server.backends.base import Backend, Sandbox, SandboxSpec
from kernelbroker_server.workspaces.directory_store import DirectoryStore
from kernelbroker_server.workspaces.layout import Layout
from kernelbroker_server.workspaces.store import Workspace

from tests.backends.brokers import running
from tests.backends.probes import BACKENDS, DEADLINE_S, ON_GVISOR, ask
from tests.support.waiting import until

IDS = itertools.count()
pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Machine:
    """A backend and a store on it, and what an application sees of them."""

    backend: Backend
    store: DirectoryStore

    @property
    def path(self) -> Path:
        """The public path of the workspace `mine`."""
        return Layout(self.backend.data_dir).public / "tenant" / "mine"

    async def claim(self) -> Workspace:
        return await self.store.claim("tenant", "session", name="mine", timeout=DEADLINE_S)

    async def launch(self) -> Sandbox:
        return await self.backend.launch(f"sandbox{next(IDS)}", SandboxSpec())

    async def end(self, workspace: Workspace, sandbox: Sandbox) -> None:
        """Move the files out of a sandbox, as at the end of a session."""
        await workspace.detach(sandbox)
        await self.backend.remove(sandbox)
        workspace.release()
        await until(lambda: not self.store._claims)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[*BACKENDS, ON_GVISOR])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with running(request.param) as backend:
        yield backend
        for directory in (Layout(backend.data_dir).public, Layout(backend.data_dir).private):
            shutil.rmtree(directory)


@pytest_asyncio.fixture(loop_scope="module")
async def machine(backend: Backend) -> AsyncIterator[Machine]:
    store = DirectoryStore(backend.data_dir)
    yield Machine(backend, store)
    await store.stop()
    shutil.rmtree(Layout(backend.data_dir).public)
    shutil.rmtree(Layout(backend.data_dir).private)
    for directory in (Layout(backend.data_dir).public, Layout(backend.data_dir).private):
        directory.mkdir()


async def test_application_shares_files_with_cells(machine: Machine) -> None:
    """An application reads and writes the files at one path before, during and after a session."""
    path = machine.path
    workspace, one = await machine.claim(), await machine.launch()
    await workspace.attach(one)
    (path / "during").write_text("from the application")
    (path / "directory").mkdir(mode=0o777)
    assert await ask(one, "result = open('/data/during').read()") == "from the application"
    source = """
with open("/data/result", "w") as file:
    file.write("from the cell")
os.remove("/data/during")
result = os.listdir("/data/directory")"""
    assert await ask(one, source) == []
    assert (path / "result").read_text() == "from the cell"
    assert not (path / "during").exists()
    await machine.end(workspace, one)

    assert (path / "result").read_text() == "from the cell"
    (path / "after").write_text("while no session has it")
    (path / "directory" / "after").write_text("deeper")

    workspace, two = await machine.claim(), await machine.launch()
    await workspace.attach(two)
    source = "result = [open('/data/' + n).read() for n in ('result', 'after', 'directory/after')]"
    expected = ["from the cell", "while no session has it", "deeper"]
    assert await ask(two, source) == expected
    assert (path / "result").read_text() == "from the cell"
    await machine.end(workspace, two)
    assert (path / "result").read_text() == "from the cell"


WRITER = """
if os.path.exists("/data/directory/file"):
    os.remove("/data/directory/file")
if os.fork() == 0:
    os.closerange(3, 256)  # the connection of this question
    number = 0
    while True:
        number += 1
        for name in ("file", "directory/file"):
            with open("/data/new", "w") as file:
                file.write(str(number))
            os.makedirs("/data/directory", exist_ok=True)
            os.rename("/data/new", "/data/" + name)
while not os.path.exists("/data/directory/file"):
    pass
result = "it writes"
"""


async def test_what_is_written_in_the_background_is_not_lost(machine: Machine) -> None:
    """Files that a background process writes while the kernel is replaced are kept."""
    workspace, sandbox = await machine.claim(), await machine.launch()
    await workspace.attach(sandbox)
    for _ in range(3):
        assert await ask(sandbox, WRITER) == "it writes"
        await workspace.detach(sandbox)
        assert sandbox.ended.done()
        numbers = [int((machine.path / name).read_text()) for name in ("file", "directory/file")]
        assert 0 <= numbers[0] - numbers[1] <= 1
        await machine.backend.remove(sandbox)
        sandbox = await machine.launch()
        await workspace.attach(sandbox)
        source = "result = [int(open('/data/' + n).read()) for n in ('file', 'directory/file')]"
        assert await ask(sandbox, source) == numbers
        (layout,) = Layout(machine.backend.data_dir).directories()
        assert list((layout / "files").iterdir()) == []
    await machine.end(workspace, sandbox)


async def test_killed_sandbox_keeps_its_files(machine: Machine) -> None:
    """`kill` ends all processes, and may be called twice and at the same time as `remove`."""
    sandbox = await machine.launch()
    await ask(sandbox, WRITER)
    await asyncio.gather(sandbox.kill(), sandbox.kill())
    assert sandbox.ended.done()
    before = (sandbox.workspace / "file").stat()
    await sandbox.kill()
    assert (sandbox.workspace / "file").stat() == before
    assert (await sandbox.usage(1000)).files >= 3
    await asyncio.gather(sandbox.kill(), machine.backend.remove(sandbox))
    assert not sandbox.workspace.exists()
