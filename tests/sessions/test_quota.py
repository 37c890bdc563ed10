"""What a session may write: cells that write more are ended, and say why; nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kernelbroker.protocol.errors import TooLarge
from kernelbroker.protocol.events import Result, Stderr
from kernelbroker_kernel.contract import SUMMARY_MIME
from kernelbroker_server.backends.base import Limits, SandboxSpec
from kernelbroker_server.backends.usage import Usage
from kernelbroker_server.sessions import quota as quota_module
from kernelbroker_server.sessions.quota import Quota, Standing
from kernelbroker_server.sessions.session import Session

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.results import cause_of
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import events_of, result_of, submit, world

MIB = 1024**2
SPEC = SandboxSpec(limits=Limits(workspace_size=MIB, workspace_files=50))


@pytest.mark.parametrize(
    ("usage", "before", "standing"),
    [
        (Usage(1000, 1000), Usage(), Standing.WITHIN),
        (Usage(1001, 0), Usage(), Standing.OVER),
        (Usage(0, 1001), Usage(), Standing.OVER),
        (Usage(1000 + MIB, 0), Usage(), Standing.OVER),
        (Usage(1001 + MIB, 0), Usage(), Standing.FAR_OVER),
        (Usage(0, 2001), Usage(), Standing.FAR_OVER),
        (Usage(10**9, 0), Usage(10**9, 0), Standing.WITHIN),
        (Usage(10**9 + 1, 0), Usage(10**9, 0), Standing.OVER),
        (Usage(2 * 10**9, 0), Usage(10**9, 0), Standing.FAR_OVER),
    ],
)
def test_standing(usage: Usage, before: Usage, standing: Standing) -> None:
    """What was there before is not held against a cell, and a little more is not much more."""
    assert Quota(1000, 1000).standing(usage, before) is standing


def test_complaint() -> None:
    """It is told how much there is, how much there may be, and what to do."""
    quota = Quota(1024**3, 100_000)
    assert quota.complaint(Usage(1024**3, 100_000)) is None
    text = quota.complaint(Usage(int(1.3 * 1024**3), 5))
    assert text == "the workspace holds 1.3 GiB, its limit is 1 GiB; delete files below /data"
    text = quota.complaint(Usage(5, 100_001))
    assert text is not None
    assert "100,001 files and directories, its limit is 100,000;" in text


def test_refusal() -> None:
    """It is told how much there is, how much there may be, what does not fit, and what to do."""
    quota = Quota(1024**3, 10)
    assert quota.refusal(Usage(1024**3 - 5, 9), Usage(5, 1)) is None
    text = quota.refusal(Usage(900 * MIB, 9), Usage(200 * MIB, 1))
    assert text == (
        "the workspace holds 900 MiB, its limit is 1 GiB: 200 MiB more does not fit; "
        "delete files below /data"
    )
    text = quota.refusal(Usage(0, 10), Usage(0, 1))
    assert text is not None
    assert "10 files and directories, its limit is 10: one more" in text


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No long pauses, and little slack."""
    for name in ("_BUSY_S", "_CLOSE_S", "_IDLE_S"):
        monkeypatch.setattr(quota_module, name, 0.01)
    monkeypatch.setattr(quota_module, "_SLACK", MIB)


def workspace_of(backend: FakeBackend, cell: Cell) -> Path:
    (sandbox,) = [s for s in backend.live.values() if s.gateway is cell.kernel]
    return sandbox.workspace


def write(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))


@pytest.fixture
def scripts(backend: FakeBackend) -> None:
    async def too_much(cell: Cell) -> None:
        write(workspace_of(backend, cell) / "large", MIB + 1)
        await cell.until_interrupted()

    async def too_many(cell: Cell) -> None:
        for number in range(51):
            (workspace_of(backend, cell) / f"{number}").touch()
        await cell.until_interrupted()

    async def on_and_on(cell: Cell) -> None:
        write(workspace_of(backend, cell) / "large", MIB + 1)
        await cell.interrupted.wait()
        write(workspace_of(backend, cell) / "larger", 2 * MIB)
        await cell.answers.get()

    async def quickly(cell: Cell) -> None:
        write(workspace_of(backend, cell) / "quick", MIB + 1)
        change = {"files": [{"path": "quick", "size": MIB + 1}]}
        cell.display({SUMMARY_MIME: change})

    async def delete(cell: Cell) -> None:
        for path in workspace_of(backend, cell).iterdir():
            path.unlink()

    backend.scripts |= {
        "too much": too_much,
        "too many": too_many,
        "on and on": on_and_on,
        "quickly": quickly,
        "delete": delete,
    }


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize("how", ["too much", "too many"])
async def test_interrupted(backend: FakeBackend, how: str) -> None:
    """A cell that writes too much is interrupted and says why; the next ones run, and can delete."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        result = await result_of(submit(session, how))
        assert (cause_of(result), result.kernel_restarted) == ("quota_exceeded", False)
        assert str(result.error).startswith("QuotaExceeded: the workspace holds ")
        events = await events_of(submit(session, "pass"))
        (said,) = [event.content for event in events if isinstance(event, Stderr)]
        assert said.startswith("QuotaExceeded: the workspace holds ")
        assert isinstance(events[-1], Result)
        assert events[-1].success
        for code in ("delete", "pass"):
            events = await events_of(submit(session, code))
            assert not [event for event in events if isinstance(event, Stderr)]


@pytest.mark.usefixtures("scripts")
async def test_who_writes_on(backend: FakeBackend) -> None:
    """A cell that writes on regardless loses its kernel, and the files stay."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        result = await result_of(submit(session, "on and on"))
        assert (cause_of(result), result.kernel_restarted) == ("quota_exceeded", True)
        assert "the kernel was replaced" in str(result.error)
        assert (await result_of(submit(session, "pass"))).success
        workspace = session._lease.workspace
        assert workspace is not None
        assert sorted(path.name for path in workspace.iterdir()) == ["large", "larger"]


@pytest.mark.usefixtures("scripts")
async def test_a_quick_cell(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that has ended before anyone looked says so as well, if it tells what it wrote."""
    monkeypatch.setattr(quota_module, "_BUSY_S", 1000)
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        *_, said, result = await events_of(submit(session, "quickly"))
        assert isinstance(said, Stderr)
        assert "its limit is 1 MiB; delete files" in said.content
        assert isinstance(result, Result)
        assert result.success


async def test_in_the_background(backend: FakeBackend) -> None:
    """What writes between cells is ended with its sandbox; the next result says that state is lost."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        assert (await result_of(submit(session))).success
        first = session._lease.workspace
        assert first is not None
        write(first / "large", 3 * MIB)
        await until(lambda: session.restarts == 1 and session._lease.workspace is not None)
        result = await result_of(submit(session))
        assert (result.success, result.kernel_restarted) == (True, True)
        workspace = session._lease.workspace
        assert workspace is not None
        assert (workspace / "large").stat().st_size == 3 * MIB
        usage = session._watch.usage
        await until(lambda: session._watch.usage is not usage)  # it looks on, and lets it be
        assert session.restarts == 1


async def test_what_was_there_before(backend: FakeBackend) -> None:
    """A session that begins with too much may go on, and is told."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open(workspace="mine")
        assert session._lease.workspace is not None
        write(session._lease.workspace / "large", 9 * MIB)
        await session.close("enough")
        session = await w.open(workspace="mine")
        await until(lambda: session._watch.usage.size > 9 * MIB - 1)
        events = await events_of(submit(session))
        assert any(isinstance(event, Stderr) for event in events)
        assert session.restarts == 0


async def upload(session: Session, size: int) -> None:
    async with asyncio.timeout(DEADLINE_S), session.upload(size):
        pass


async def test_uploads_are_refused(backend: FakeBackend) -> None:
    """What does not fit beside what is there is refused; deleting makes room at once."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        workspace = session._lease.workspace
        assert workspace is not None
        write(workspace / "large", MIB - 8192)
        await until(lambda: session._watch.usage.size)
        with pytest.raises(TooLarge, match="its limit is 1 MiB: 1 MiB more does not fit"):
            await upload(session, MIB)
        await upload(session, 8192)
        (workspace / "large").unlink()
        await upload(session, MIB)
        for number in range(50):
            (workspace / f"{number}").touch()
        await until(lambda: session._watch.usage.files == 50)
        with pytest.raises(TooLarge, match="50 files and directories, its limit is 50: one"):
            await upload(session, 0)


async def test_uploads_that_nobody_has_seen(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count while they come, and afterwards, once; those that failed do not."""
    monkeypatch.setattr(quota_module, "_IDLE_S", 1000)
    part = MIB // 4
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        workspace = session._lease.workspace
        assert workspace is not None
        async with asyncio.timeout(DEADLINE_S):
            await upload(session, part)
            write(workspace / "one", part)
            async with session.upload(2 * part), session.upload(0) as growing:
                await growing.grow(part)
                with pytest.raises(TooLarge):
                    await growing.grow(4096)
                assert session._watch.usage.size == part  # it was looked for what was deleted
                with pytest.raises(TooLarge):
                    await upload(session, 4096)
                write(workspace / "two", 3 * part)
            with pytest.raises(TooLarge):
                await upload(session, 4096)
            (workspace / "two").unlink()
            for error in (ZeroDivisionError, asyncio.CancelledError):
                with pytest.raises(error):
                    async with session.upload(3 * part):
                        raise error
            await upload(session, 3 * part)


async def test_uploads_while_nobody_can_look(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no look comes in time, what is known decides."""
    monkeypatch.setattr(quota_module, "_FRESH_S", 0.01)
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        monkeypatch.setattr(session._watch, "_workspace", lambda: None)
        await upload(session, MIB)
        with pytest.raises(TooLarge):
            await upload(session, 1)
