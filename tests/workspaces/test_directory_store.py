"""A session's files on their way from one sandbox to the next, and from one session to the next."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, Unavailable
from kernelbroker.protocol.messages import SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE
from kernelbroker_server.backends.base import SandboxSpec, Usage
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.tenants.tenant import Tenant
from kernelbroker_server.workspaces import directory_store, recovery
from kernelbroker_server.workspaces.directory_store import DirectoryStore
from kernelbroker_server.workspaces.layout import Layout, Record
from kernelbroker_server.workspaces.workspace_directory import WorkspaceDirectory

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.gateway import Cell, CellFailed
from tests.support.waiting import DEADLINE_S, cancelled_anywhere, turns, until
from tests.support.world import World, result_of, submit, world


def layout_of(backend: FakeBackend) -> Layout:
    return Layout(backend.data_dir)


def sandbox_of(backend: FakeBackend, session: Session) -> FakeSandbox:
    warm = session._lease._warm
    assert warm is not None
    return backend.live[warm.sandbox.id]


def workspace_of(backend: FakeBackend, session: Session) -> Path:
    return sandbox_of(backend, session).workspace


async def replaced(w: World, session: Session, how: str) -> None:
    """The session's kernel is replaced, in one of the ways in which that happens."""
    if how == "restart":
        await session.restart()
    else:
        await result_of(submit(session, "die"))
        await result_of(submit(session))


@pytest.mark.parametrize("how", ["restart", "death"])
@pytest.mark.parametrize("sizes", [PoolLimits(2, 4), PoolLimits(0, 1)], ids=["idle", "none"])
async def test_files_survive_replacement(backend: FakeBackend, how: str, sizes: PoolLimits) -> None:
    """Files survive a replacement, also if the new sandbox starts after the end of the old one."""
    async with world(backend, pool=sizes) as w:
        session = await w.open()
        old = workspace_of(backend, session)
        (old / "kept").write_text("kept")
        await replaced(w, session, how)
        new = workspace_of(backend, session)
        assert new != old
        assert (new / "kept").read_text() == "kept"
        await until(lambda: not old.exists())


async def test_files_wait_for_a_sandbox(backend: FakeBackend) -> None:
    """While no sandbox is available, the store keeps the files for the next one."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    async with world(backend, pool=PoolLimits(0, 1), acquire_timeout=0.5) as w:
        session = await w.open()
        (workspace_of(backend, session) / "kept").write_text("kept")
        backend.on_launch = launch
        await result_of(submit(session, "die"))
        assert not (await result_of(submit(session))).success
        hold.set()
        while not (await result_of(submit(session))).success:
            pass
        assert (workspace_of(backend, session) / "kept").read_text() == "kept"


async def test_files_survive_a_directory_to_work_in(backend: FakeBackend) -> None:
    """Files in the working directory of a session survive a replacement."""

    async def configure(cell: Cell) -> None:
        (sandbox,) = [s for s in backend.live.values() if s.gateway is cell.kernel]
        (sandbox.workspace / "work").mkdir(exist_ok=True)

    backend.scripts[CONFIGURE_CODE] = configure
    async with world(backend) as w:
        session = await w.open(cwd="work")
        (workspace_of(backend, session) / "work/kept").write_text("kept")
        await session.restart()
        assert (workspace_of(backend, session) / "work/kept").read_text() == "kept"


# Workspaces by name.


def names(backend: FakeBackend, tenant: str = "default") -> list[str]:
    return [record.name for record in layout_of(backend).records() if record.tenant == tenant]


async def close(w: World, session: Session) -> None:
    """Close the session, and wait until its files are put back."""
    await session.close("enough")
    await until(lambda: not w.workspaces_in_use)


async def test_later_session_gets_the_files_by_name(backend: FakeBackend) -> None:
    """A later session with the same workspace waits until the files are put back, and then has them."""
    async with world(backend) as w:
        for count in range(3):
            session = await w.open(workspace="mine")
            assert session.workspace == "mine"
            workspace = workspace_of(backend, session)
            assert len(list(workspace.iterdir())) == count
            (workspace / f"{count}").write_text("x")
            await session.close("enough")
        await until(lambda: not w.workspaces_in_use)
        (record,) = await w.service.workspaces.list("default")
        assert (record.name, record.session_id, record.usage.files) == ("mine", None, 3)
        assert record.usage.size > 0
        assert record.expires_at == record.used_at + 86400


async def test_the_session_id_is_the_name(backend: FakeBackend) -> None:
    """A workspace without a name has the session's id as its name."""
    async with world(backend) as w:
        session = await w.open("first")
        (workspace_of(backend, session) / "file").write_text("x")
        await session.close("enough")
        session = await w.open(workspace="first")
        assert (workspace_of(backend, session) / "file").read_text() == "x"


async def test_empty_ones_are_not_kept(backend: FakeBackend) -> None:
    """A session without files leaves no workspace, also if shared data was mounted in it."""
    async with world(backend, spec=SandboxSpec(shared_data=Path("/usr"))) as w:
        session = await w.open("one")
        (workspace_of(backend, session) / "shared").mkdir()
        await close(w, session)
        assert names(backend) == []
        session = await w.open("two")
        (workspace_of(backend, session) / "shared").mkdir()
        (workspace_of(backend, session) / "file").touch()
        await close(w, session)
        session = await w.open("three", workspace="two")
        assert [path.name for path in workspace_of(backend, session).iterdir()] == ["file"]


async def test_no_retention(backend: FakeBackend) -> None:
    """Without retention a workspace is removed with its session, also after a replacement."""
    async with world(backend) as w:
        session = await w.open(workspace_retention=0)
        (workspace_of(backend, session) / "file").touch()
        assert not layout_of(backend).private.exists()
        await session.restart()
        assert (workspace_of(backend, session) / "file").exists()
        await session.close("enough")
        await until(lambda: not w.workspaces_in_use)
        assert names(backend) == []
        session = await w.open(workspace="named", workspace_retention=0)
        (workspace_of(backend, session) / "file").touch()
        await close(w, session)
        assert names(backend) == []


async def test_stored_workspace_with_the_same_name_is_not_touched(backend: FakeBackend) -> None:
    """A session without retention does not touch a stored workspace with its name."""
    async with world(backend) as w:
        await keep(w, backend, "mine")
        session = await w.open("mine", workspace_retention=0)
        assert list(workspace_of(backend, session).iterdir()) == []
        (workspace_of(backend, session) / "other").touch()
        await session.restart()
        assert names(backend) == ["mine"]
        assert names(backend, "") != []
        await close(w, session)
        assert names(backend, "") == []
        session = await w.open("another", workspace="mine")
        assert [path.name for path in workspace_of(backend, session).iterdir()] == ["file"]


async def test_workspace_of_a_dead_broker_is_free(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace of a dead broker is free again, and expires."""
    monkeypatch.setattr(directory_store, "_REAP_S", 0.01)
    for name, sandbox in [("one", None), ("two", "dead/sandboxes/x/workspace")]:
        record = Record(tenant="default", name=name, session_id="s", sandbox=sandbox)
        WorkspaceDirectory.claim(layout_of(backend), record).close()
    async with world(backend):
        await until(lambda: [r.session_id for r in layout_of(backend).records()] == ["", ""])


async def test_opening_waits_for_a_session_that_closes(backend: FakeBackend) -> None:
    """A session that opens the workspace of one that is being closed gets it, with its files."""
    killed = asyncio.Event()
    async with world(backend) as w:
        first = await w.open("first", workspace="mine")
        (workspace_of(backend, first) / "kept").write_text("kept")
        sandbox = sandbox_of(backend, first)
        kill = sandbox.kill

        async def kill_later() -> None:
            await killed.wait()
            await kill()

        sandbox.kill = kill_later  # type: ignore[method-assign]
        closing = asyncio.create_task(first.close("enough"))
        opening = asyncio.create_task(w.open("second", workspace="mine"))
        await turns(50)
        assert not opening.done()
        killed.set()
        second = await opening
        await closing
        assert (workspace_of(backend, second) / "kept").read_text() == "kept"


async def test_opening_waits_while_an_abandoned_workspace_is_put_back(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that opens a dead broker's workspace while it is measured gets it afterwards."""
    record = Record(tenant="default", name="mine", session_id="dead")
    WorkspaceDirectory.claim(layout_of(backend), record).close()
    measuring, go_on = threading.Event(), threading.Event()

    def measure(*_: object) -> Usage:
        measuring.set()
        assert go_on.wait(DEADLINE_S)
        return Usage()

    monkeypatch.setattr(recovery, "measure", measure)
    async with world(backend) as w:
        await until(measuring.is_set)
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        try:
            assert await w.open(workspace="mine")
        finally:
            go_on.set()


async def test_one_session_at_a_time(backend: FakeBackend) -> None:
    """A workspace in use can be neither claimed nor removed. The error names its session."""
    async with world(backend) as w:
        session = await w.open("first", workspace="mine")
        with pytest.raises(Conflict, match="session first"):
            await w.open("second", workspace="mine")
        with pytest.raises(Conflict, match="session first"):
            await w.service.workspaces.delete("default", "mine")
        with pytest.raises(Conflict, match="mine"):
            await w.open("first", workspace="other")
        assert (await w.open("first"), await w.open("first", workspace="mine")) == (
            session,
            session,
        )
        assert w.registry.list() == [session]
        (record,) = await w.service.workspaces.list("default")
        assert record.session_id == "first"
        assert record.expires_at is None


async def test_another_broker_has_it(backend: FakeBackend) -> None:
    """A workspace that a session of another broker has cannot be claimed."""
    async with world(backend) as w:
        other = WorkspaceDirectory.claim(
            layout_of(backend), Record(tenant="default", name="mine", session_id="theirs")
        )
        with pytest.raises(Conflict, match="theirs"):
            await w.open(workspace="mine")
        other.put_back(Usage())
        assert await w.open(workspace="mine")


async def test_tenants_are_separate(backend: FakeBackend) -> None:
    """A tenant cannot open, list or remove another tenant's workspace of the same name."""
    async with world(backend) as w:
        session = await w.open(workspace="mine")
        (workspace_of(backend, session) / "file").touch()
        await session.close("enough")
        other = w.tenants.of(Tenant("other"))
        session, _ = await other.sessions.open(SessionOptions(workspace="mine"))
        assert list(workspace_of(backend, session).iterdir()) == []
        await close(w, session)
        assert await w.service.workspaces.list("other") == []
        with pytest.raises(NotFound):
            await w.service.workspaces.delete("other", "mine")
        assert names(backend) == ["mine"]


async def test_workspaces_can_be_removed(backend: FakeBackend) -> None:
    """A workspace can be removed, also while its session is ending."""
    async with world(backend) as w:
        session = await w.open(workspace="mine")
        (workspace_of(backend, session) / "file").touch()
        await session.close("enough")
        await w.service.workspaces.delete("default", "mine")
        assert names(backend) == []
        with pytest.raises(NotFound, match="mine"):
            await w.service.workspaces.delete("default", "mine")


async def test_files_while_there_is_no_sandbox(backend: FakeBackend) -> None:
    """A session that is closed while it has no sandbox leaves its files in the workspace."""

    async def launch(_sandbox: object) -> None:
        await asyncio.Event().wait()

    async with world(backend, pool=PoolLimits(0, 1), acquire_timeout=0.5) as w:
        session = await w.open("mine")
        (workspace_of(backend, session) / "file").write_text("x")
        backend.on_launch = launch
        await result_of(submit(session, "die"))
        await until(lambda: w.pool.status().busy_containers == 0)
        await close(w, session)
        (record,) = await w.service.workspaces.list("default")
        assert (record.name, record.usage.files) == ("mine", 1)


async def test_failed_lease_keeps_the_files(backend: FakeBackend) -> None:
    """If a session cannot be opened, the files stay for the next one."""

    async def refuse(_cell: Cell) -> None:
        raise CellFailed("FileNotFoundError", "nowhere")

    async with world(backend) as w:
        session = await w.open("one", workspace="mine")
        (workspace_of(backend, session) / "file").write_text("x")
        await session.close("enough")
        backend.scripts[CONFIGURE_CODE] = refuse
        with pytest.raises(BadRequest):
            await w.open("two", workspace="mine", cwd="nowhere")
        session = await w.open("three", workspace="mine")
        assert (workspace_of(backend, session) / "file").read_text() == "x"


async def test_opening_cancelled_at_any_await(backend: FakeBackend) -> None:
    """An opening that is cancelled at any await loses no file and frees the workspace."""
    async with world(backend) as w:
        session = await w.open("one", workspace="mine")
        for number in range(20):
            (workspace_of(backend, session) / f"{number}").touch()
        await session.close("enough")

        async def work() -> None:
            session, _ = await w.registry.open(SessionOptions(workspace="mine", env={"A": "1"}))
            await session.close("it was opened after all")

        runs = 0
        async for task in cancelled_anywhere(work, growth=1.5):
            runs += 1
            assert task.cancelled() or task.exception() is None
            await until(lambda: not w.workspaces_in_use)
            await until(lambda: w.pool.status().busy_containers == 0)
            session = await w.open(workspace="mine")
            assert len(list(workspace_of(backend, session).iterdir())) == 20
            await session.close("seen")
            await until(lambda: w.pool.status().idle_containers)
        assert runs > 10


async def test_the_disk_is_full(backend: FakeBackend) -> None:
    """A workspace that cannot be made is reported, and leaves nothing behind."""
    layout_of(backend).private.write_text("in the way")
    async with world(backend) as w:
        with pytest.raises(Unavailable, match="workspace cannot be opened"):
            await w.open("mine")
        assert w.registry.list() == []
        layout_of(backend).private.unlink()
        assert await w.open("mine")


# Expiry.


async def keep(w: World, backend: FakeBackend, name: str, size: int = 0) -> None:
    session = await w.open(workspace=name)
    (workspace_of(backend, session) / "file").write_bytes(bytes(size))
    await close(w, session)


async def test_expired_workspaces_are_removed(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expired workspaces are removed, except while a session has them."""
    monkeypatch.setattr(directory_store, "_REAP_S", 0.01)
    async with world(backend) as w:
        await keep(w, backend, "expired")
        await keep(w, backend, "used")
        await keep(w, backend, "fresh")
        for name in ("expired", "used"):
            kept = WorkspaceDirectory.claim(layout_of(backend), Record(tenant="default", name=name))
            kept.record.used_at = time.time() - 86401
            if name == "expired":
                kept.write()
            kept.close()
        session = await w.open(workspace="used")
        await until(lambda: names(backend) == ["fresh", "used"])
        assert (workspace_of(backend, session) / "file").exists()
        (layout_of(backend).private / ".half-removed").mkdir()
        await until(lambda: not (layout_of(backend).private / ".half-removed").exists())


async def test_least_recently_used_workspaces_are_removed_over_max_size(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over `max_size` the least recently used workspaces are removed first."""
    monkeypatch.setattr(directory_store, "_REAP_S", 0.01)
    workspaces = DirectoryStore(backend.data_dir, max_size=250_000)
    async with world(backend, workspaces=workspaces) as w:
        for name in ("c", "b", "a"):
            await keep(w, backend, name, 100_000)
        await until(lambda: names(backend) == ["b", "a"])
        async with asyncio.timeout(DEADLINE_S):
            session = await w.open(workspace="b")
        assert (workspace_of(backend, session) / "file").stat().st_size == 100_000


@pytest.mark.parametrize("is_for_long", [False, True])
async def test_a_full_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_for_long: bool
) -> None:
    """The broker gives up its reserve a moment after the disk has become full."""
    store, claim, tries = DirectoryStore(tmp_path), WorkspaceDirectory.claim, 0

    def full(*arguments: Any) -> WorkspaceDirectory:
        nonlocal tries
        tries += 1
        if is_for_long or tries < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return claim(*arguments)

    monkeypatch.setattr(WorkspaceDirectory, "claim", full)
    if is_for_long:
        with pytest.raises(Unavailable, match="No space left"):
            await store.claim("t", "s", name="w", timeout=0.3)
        assert tries > 3
    else:
        (await store.claim("t", "s", name="w", timeout=DEADLINE_S)).release()
    await store.stop()


@pytest.mark.parametrize("is_given_up", [True, False])
async def test_another_broker_puts_a_workspace_away(tmp_path: Path, is_given_up: bool) -> None:
    """It does so after it has told that the session is closed: its next user waits for a moment."""
    stores = [DirectoryStore(tmp_path), DirectoryStore(tmp_path)]
    had = await stores[0].claim("t", "before", name="w", timeout=DEADLINE_S)
    claiming = asyncio.create_task(stores[1].claim("t", "next", name="w", timeout=DEADLINE_S))
    await asyncio.sleep(0.2)
    assert not claiming.done()
    if is_given_up:
        had.release()
        (await claiming).release()
    else:
        with pytest.raises(Conflict, match="in use by session before"):
            await claiming
        had.release()
    for store in stores:
        await store.stop()
