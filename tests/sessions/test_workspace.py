"""A session's files on their way from one sandbox to the next, and from one session to the next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, Unavailable
from kernelbroker.protocol.messages import SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.kept import KeptWorkspace, Record, records
from kernelbroker_server.backends.usage import Usage
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions import workspace as workspace_module
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.sessions.workspace import Workspaces
from kernelbroker_server.tenants.tenant import Tenant

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell, CellFailed
from tests.support.waiting import DEADLINE_S, turns, until
from tests.support.world import World, result_of, submit, world


def workspace_of(backend: FakeBackend, session: Session) -> Path:
    warm = session._lease._warm
    assert warm is not None
    return backend.live[warm.sandbox.id].workspace


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
    """Files are there after a replacement, also where the new sandbox came after the old had gone."""
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
    """Where there is no sandbox to be had, the files wait for the next one."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    async with world(backend, pool=PoolLimits(0, 1), acquire_timeout=0.05) as w:
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
    """Files that lie where a session works are there after a replacement as well."""

    async def configure(cell: Cell) -> None:
        (sandbox,) = [s for s in backend.live.values() if s.gateway is cell.kernel]
        (sandbox.workspace / "work").mkdir(exist_ok=True)

    backend.scripts[CONFIGURE_CODE] = configure
    async with world(backend) as w:
        session = await w.open(cwd="work")
        (workspace_of(backend, session) / "work/kept").write_text("kept")
        await session.restart()
        assert (workspace_of(backend, session) / "work/kept").read_text() == "kept"


# Kept by name.


def names(backend: FakeBackend, tenant: str = "default") -> list[str]:
    return [record.name for record in records(backend.kept) if record.tenant == tenant]


async def close(w: World, session: Session) -> None:
    """Close it, and wait until its files are put away."""
    await session.close("enough")
    await until(lambda: not w.registry.workspaces._held)


async def test_kept_by_name(backend: FakeBackend) -> None:
    """A later session that names the workspace has its files at once, and only once they are settled."""
    async with world(backend) as w:
        for count in range(3):
            session = await w.open(workspace="mine")
            assert session.workspace == "mine"
            workspace = workspace_of(backend, session)
            assert len(list(workspace.iterdir())) == count
            (workspace / f"{count}").write_text("x")
            await session.close("enough")
        await until(lambda: not w.registry.workspaces._held)
        (record,) = await w.registry.workspaces.list("default")
        assert (record.name, record.session_id, record.files) == ("mine", "", 3)
        assert record.size > 0
        assert w.registry.workspaces.expires_at(record) == record.used_at + 86400


async def test_the_session_id_is_the_name(backend: FakeBackend) -> None:
    """Where no name was given, the session's id is the name."""
    async with world(backend) as w:
        session = await w.open("first")
        (workspace_of(backend, session) / "file").write_text("x")
        await session.close("enough")
        session = await w.open(workspace="first")
        assert (workspace_of(backend, session) / "file").read_text() == "x"


async def test_empty_ones_are_not_kept(backend: FakeBackend) -> None:
    """There is nothing to keep of a session without files, not even where something is mounted."""
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
    """What is not to be kept is gone with its session, also after its kernel was replaced."""
    async with world(backend) as w:
        async with w.registry.ephemeral(SessionOptions(workspace_retention=0)) as session:
            (workspace_of(backend, session) / "file").touch()
            assert not backend.kept.exists()
            await session.restart()
            assert (workspace_of(backend, session) / "file").exists()
        await until(lambda: not w.registry.workspaces._held)
        assert names(backend) == []
        session = await w.open(workspace="named", workspace_retention=0)
        (workspace_of(backend, session) / "file").touch()
        await close(w, session)
        assert names(backend) == []


async def test_what_was_kept_before(backend: FakeBackend) -> None:
    """A session that keeps nothing leaves alone what is kept under its name."""
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


async def test_never_put_away(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that its broker had no time to put away is free, and its time runs."""
    monkeypatch.setattr(workspace_module, "_REAP_S", 0.01)
    for name, sandbox in [("one", None), ("two", "dead/sandboxes/x/workspace")]:
        record = Record(tenant="default", name=name, session_id="s", sandbox=sandbox)
        KeptWorkspace.claim(backend.kept, record).close()
    async with world(backend):
        await until(lambda: [r.session_id for r in records(backend.kept)] == ["", ""])


async def test_one_session_at_a_time(backend: FakeBackend) -> None:
    """A workspace that is in use is refused, naming the session; it cannot be removed either."""
    async with world(backend) as w:
        session = await w.open("first", workspace="mine")
        with pytest.raises(Conflict, match="session first"):
            await w.open("second", workspace="mine")
        with pytest.raises(Conflict, match="session first"):
            await w.registry.workspaces.delete("default", "mine")
        with pytest.raises(Conflict, match="mine"):
            await w.open("first", workspace="other")
        assert (await w.open("first"), await w.open("first", workspace="mine")) == (
            session,
            session,
        )
        assert w.registry.list() == [session]
        (record,) = await w.registry.workspaces.list("default")
        assert record.session_id == "first"
        assert w.registry.workspaces.expires_at(record) is None


async def test_another_broker_has_it(backend: FakeBackend) -> None:
    """A workspace is refused that a session of another broker has."""
    async with world(backend) as w:
        other = KeptWorkspace.claim(
            backend.kept, Record(tenant="default", name="mine", session_id="theirs")
        )
        with pytest.raises(Conflict, match="theirs"):
            await w.open(workspace="mine")
        other.put_back(Usage())
        assert await w.open(workspace="mine")


async def test_tenants(backend: FakeBackend) -> None:
    """A tenant neither gets nor sees nor removes another one's workspace of the same name."""
    async with world(backend) as w:
        session = await w.open(workspace="mine")
        (workspace_of(backend, session) / "file").touch()
        await session.close("enough")
        registry = w.registries.of(Tenant("other"))
        session, _ = await registry.open(SessionOptions(workspace="mine"))
        assert list(workspace_of(backend, session).iterdir()) == []
        await close(w, session)
        assert await w.registry.workspaces.list("other") == []
        with pytest.raises(NotFound):
            await w.registry.workspaces.delete("other", "mine")
        assert names(backend) == ["mine"]


async def test_delete(backend: FakeBackend) -> None:
    """A workspace that was removed is gone; so is one whose session is just ending."""
    async with world(backend) as w:
        session = await w.open(workspace="mine")
        (workspace_of(backend, session) / "file").touch()
        await session.close("enough")
        await w.registry.workspaces.delete("default", "mine")
        assert names(backend) == []
        with pytest.raises(NotFound, match="mine"):
            await w.registry.workspaces.delete("default", "mine")


async def test_files_while_there_is_no_sandbox(backend: FakeBackend) -> None:
    """A session that is closed while its files wait for a sandbox leaves them in its workspace."""

    async def launch(_sandbox: object) -> None:
        await asyncio.Event().wait()

    async with world(backend, pool=PoolLimits(0, 1), acquire_timeout=0.05) as w:
        session = await w.open("mine")
        (workspace_of(backend, session) / "file").write_text("x")
        backend.on_launch = launch
        await result_of(submit(session, "die"))
        await until(lambda: w.pool.status().busy_containers == 0)
        await close(w, session)
        (record,) = await w.registry.workspaces.list("default")
        assert (record.name, record.files) == ("mine", 1)


async def test_a_lease_that_fails(backend: FakeBackend) -> None:
    """Where a session cannot be opened after all, the files stay for the next one."""

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


@pytest.mark.parametrize("count", range(0, 40, 3))
async def test_cancelled_anywhere(backend: FakeBackend, count: int) -> None:
    """Whenever an opening is cancelled, no file is lost and the workspace is free."""
    async with world(backend) as w:
        session = await w.open("one", workspace="mine")
        for number in range(20):
            (workspace_of(backend, session) / f"{number}").touch()
        await session.close("enough")
        await until(lambda: w.pool.status().idle_containers)
        options = SessionOptions(workspace="mine", env={"A": "1"})
        opening = asyncio.create_task(w.registry.open(options))
        await turns(count)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            session, _ = await opening
            await session.close("it was opened after all")
        await until(lambda: not w.registry.workspaces._held)
        await until(lambda: w.pool.status().busy_containers == 0)
        session = await w.open("two", workspace="mine")
        assert len(list(workspace_of(backend, session).iterdir())) == 20


async def test_the_disk_is_full(backend: FakeBackend) -> None:
    """A workspace that cannot be made is told, and leaves nothing."""
    backend.kept.write_text("in the way")
    async with world(backend) as w:
        with pytest.raises(Unavailable, match="workspace cannot be opened"):
            await w.open("mine")
        assert w.registry.list() == []
        backend.kept.unlink()
        assert await w.open("mine")


# Reaping.


async def keep(w: World, backend: FakeBackend, name: str, size: int = 0) -> None:
    session = await w.open(workspace=name)
    (workspace_of(backend, session) / "file").write_bytes(bytes(size))
    await close(w, session)


async def test_reaped_in_time(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces are removed when their time is over, and not while a session has them."""
    monkeypatch.setattr(workspace_module, "_REAP_S", 0.01)
    async with world(backend) as w:
        await keep(w, backend, "expired")
        await keep(w, backend, "used")
        await keep(w, backend, "fresh")
        for name in ("expired", "used"):
            kept = KeptWorkspace.claim(backend.kept, Record(tenant="default", name=name))
            kept.record.used_at = time.time() - 86401
            if name == "expired":
                kept.write()
            kept.close()
        session = await w.open(workspace="used")
        await until(lambda: names(backend) == ["fresh", "used"])
        assert (workspace_of(backend, session) / "file").exists()
        (backend.kept / ".half-removed").mkdir()
        await until(lambda: not (backend.kept / ".half-removed").exists())


async def test_reaped_for_room(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all together take too much, the oldest go first."""
    monkeypatch.setattr(workspace_module, "_REAP_S", 0.01)
    workspaces = Workspaces(backend.kept, max_size=250_000)
    async with world(backend, workspaces=workspaces) as w:
        for name in ("c", "b", "a"):
            await keep(w, backend, name, 100_000)
        await until(lambda: names(backend) == ["b", "a"])
        async with asyncio.timeout(DEADLINE_S):
            session = await w.open(workspace="b")
        assert (workspace_of(backend, session) / "file").stat().st_size == 100_000
