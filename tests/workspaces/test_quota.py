"""What a session may write: cells that write more are ended, and say why; nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.errors import TooLarge
from kernelbroker.protocol.events import Result, Stderr
from kernelbroker_server import supervisor as supervisor_module
from kernelbroker_server.backends.base import UNKNOWN, Limits, SandboxSpec, Usage
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.workspaces import quota as quota_module
from kernelbroker_server.workspaces import quota_watch
from kernelbroker_server.workspaces.disk_room import DiskRoom
from kernelbroker_server.workspaces.layout import Layout
from kernelbroker_server.workspaces.quota import Quota, QuotaAction, QuotaState, Standing
from kernelbroker_server.workspaces.quota_watch import QuotaWatch

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.gateway import Cell
from tests.support.results import cause_of
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import events_of, result_of, submit, world

ROOM = DiskRoom(Path(), 0)
"""It is never short."""
MIB = 1024**2
SLACK = MIB
SPEC = SandboxSpec(limits=Limits(workspace_size=MIB, workspace_files=50))


@pytest.mark.parametrize(
    ("usage", "standing"),
    [
        (Usage(1000, 1000), Standing.WITHIN),
        (Usage(1001, 0), Standing.OVER),
        (Usage(0, 1001), Standing.OVER),
        (Usage(1000 + SLACK, 0), Standing.OVER),
        (Usage(1001 + SLACK, 0), Standing.FAR_OVER),
        (Usage(0, 2001), Standing.FAR_OVER),
        (Usage(2000 + SLACK, 0), Standing.FAR_OVER),
        (Usage(2001 + SLACK, 0), Standing.ABOVE_CEILING),
        (Usage(0, 3001), Standing.ABOVE_CEILING),
    ],
)
def test_standing(usage: Usage, standing: Standing) -> None:
    """The standing depends on how far the usage exceeds the limit."""
    assert Quota(1000, 1000).standing(usage) is standing


class Simulation:
    """A session whose workspace is looked at, and what becomes of it. Sizes in MiB, times in seconds."""

    def __init__(self, quota: int = 1024, initial: int = 0) -> None:
        self.state = QuotaState(Quota(quota * MIB, 100_000), Usage(initial * MIB, 1), grace=2.0)
        self.size, self.now = initial, 0.0

    def look(self, written: int = 0, seconds: float = 1.0, **kind: bool) -> QuotaAction | None:
        """Write this much, then measure."""
        self.size += written
        return self.found(Usage(self.size * MIB, 1), seconds, **kind)

    def found(self, usage: Usage, seconds: float = 1.0, **kind: bool) -> QuotaAction | None:
        self.now += seconds
        kind = {"cell_runs": False, "client_wrote": False, **kind}
        action = self.state.look(usage, now=self.now, **kind)
        return None if action is None else action[0]


def test_slow_writer_in_the_background_is_stopped() -> None:
    """A background writer of 5 MiB/s is stopped soon after the limit, though each look finds little."""
    simulation = Simulation()
    while simulation.look(5 * 20, seconds=20) is None:
        assert simulation.size < 2 * 1024
    assert (
        simulation.size <= 1024 + 103 + 100
    )  # limit, slack, and what is written between two looks


def test_writers_of_many_cells_stay_below_the_ceiling() -> None:
    """If each cell starts a background writer, the workspace grows to the ceiling; then no cell runs."""
    simulation = Simulation()
    cells = 0
    while simulation.state.refusal is None:
        simulation.state.begin_cell()
        cells += 1
        assert cells < 1000
        if simulation.look(5, cell_runs=True) is None:
            simulation.look(5)
    assert simulation.size <= 2 * 1024 + 103 + 3 * 5
    assert "no cell runs" in simulation.state.refusal
    simulation.look(-100, client_wrote=True)
    assert simulation.state.refusal is None


def test_cell_may_delete_above_the_ceiling() -> None:
    """Above the ceiling a cell may delete files. It is aborted at once if it writes more."""
    simulation = Simulation()
    simulation.look(5000)
    simulation.state.begin_cell()
    assert simulation.look(-100, cell_runs=True) is None
    simulation.state.begin_cell()
    assert simulation.state.refusal is None
    assert simulation.look(1, cell_runs=True) is QuotaAction.INTERRUPT
    assert simulation.look(0, seconds=0.2, cell_runs=True) is QuotaAction.ABORT
    assert simulation.state.refusal is not None


def test_initial_usage_is_allowed_until_it_is_deleted() -> None:
    """The initial usage is allowed. Files that were deleted cannot be written again."""
    simulation = Simulation(initial=3000)
    assert simulation.state.refusal is None
    assert simulation.look() is None
    assert simulation.look(-2900) is None
    assert simulation.look(1024 + 103) is QuotaAction.REPLACE


def test_cell_may_delete_and_not_add() -> None:
    """Over the limit a cell may delete files. A cell that writes is interrupted, then aborted."""
    simulation = Simulation()
    simulation.look(1500)
    simulation.state.begin_cell()
    assert simulation.look(-10, cell_runs=True) is None
    assert simulation.look(20, cell_runs=True) is QuotaAction.INTERRUPT
    assert simulation.look(1, cell_runs=True) is None
    assert simulation.look(1, cell_runs=True) is QuotaAction.ABORT


@pytest.mark.parametrize("cell_runs", [False, True])
def test_incomplete_measurements_count_as_over(cell_runs: bool) -> None:
    """A workspace that cannot be measured for ten seconds counts as too large."""
    simulation = Simulation()
    simulation.look(500)
    simulation.state.begin_cell()
    incomplete = Usage(0, 0, complete=False)
    actions = [simulation.found(incomplete, cell_runs=cell_runs) for _ in range(14)]
    expected = {10: QuotaAction.REPLACE}
    if cell_runs:
        expected = {10: QuotaAction.INTERRUPT, 12: QuotaAction.ABORT}
    assert {number: action for number, action in enumerate(actions) if action} == expected
    assert simulation.state.usage.size == 500 * MIB
    assert simulation.look() is None


def test_one_incomplete_measurement_is_forgiven() -> None:
    """Measurements that are incomplete for less than ten seconds have no consequences."""
    simulation = Simulation()
    for _ in range(10):
        for _ in range(9):
            assert simulation.found(Usage(0, 0, complete=False)) is None
        assert simulation.look() is None


def test_entries_beyond_the_bound_of_the_count() -> None:
    """A count that reaches its bound is above the ceiling, with any initial usage."""
    for initial in (1, 300_000):
        quota = Quota(MIB, 100_000)
        state = QuotaState(quota, Usage(0, initial), grace=2.0)
        found = Usage(0, state.max_count + 1, complete=False)
        action = state.look(found, now=1.0, cell_runs=False, client_wrote=True)
        assert action is not None
        assert action[0] is QuotaAction.REPLACE
        state.begin_cell()
        found = Usage(MIB, state.max_count + 1, complete=False)
        assert state.look(found, now=2.0, cell_runs=True, client_wrote=False) is not None
        assert state.refusal is not None


def test_complaint() -> None:
    """The message has the usage, the limit and advice."""
    quota = Quota(1024**3, 100_000)
    assert quota.complaint(Usage(1024**3, 100_000)) is None
    text = quota.complaint(Usage(int(1.3 * 1024**3), 5))
    assert text == "the workspace holds 1.3 GiB, its limit is 1 GiB; delete files below /data"
    text = quota.complaint(Usage(5, 100_001))
    assert text is not None
    assert "100,001 files and directories, its limit is 100,000;" in text


def test_refusal() -> None:
    """The message has the usage, the limit, the size of the upload and advice."""
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
    """Short pauses and little slack, to make the tests fast."""
    for name in ("_BUSY_S", "_CLOSE_S", "_IDLE_S"):
        monkeypatch.setattr(quota_watch, name, 0.01)
    monkeypatch.setattr(quota_module, "_SLACK", MIB)


def workspace_of(backend: FakeBackend, cell: Cell) -> Path:
    (sandbox,) = [s for s in backend.live.values() if s.gateway is cell.kernel]
    return sandbox.workspace


def files_of(backend: FakeBackend, session: Session) -> Path:
    """The directory that has the files of a session now."""
    return (Layout(backend.data_dir).public / "default" / session.workspace).resolve()


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
        write(workspace_of(backend, cell) / "larger", MIB + MIB // 2)
        await cell.answers.get()

    async def quickly(cell: Cell) -> None:
        write(workspace_of(backend, cell) / "quick", MIB + 1)
        cell.summary = {"files": [{"path": "quick", "size": MIB + 1}]}

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
async def test_cell_over_the_limit_is_interrupted(backend: FakeBackend, how: str) -> None:
    """A cell over the limit is interrupted with a reason. Later cells run and can delete files."""
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
async def test_cell_that_ignores_its_interrupt_loses_its_kernel(backend: FakeBackend) -> None:
    """A cell that ignores its interrupt loses its kernel. The files stay."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        result = await result_of(submit(session, "on and on"))
        assert (cause_of(result), result.kernel_restarted) == ("quota_exceeded", True)
        assert "the kernel was replaced" in str(result.error)
        assert (await result_of(submit(session, "pass"))).success
        workspace = files_of(backend, session)
        assert sorted(path.name for path in workspace.iterdir()) == ["large", "larger"]


@pytest.mark.usefixtures("scripts")
async def test_cell_that_ends_before_a_measurement_is_told(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of a cell that ends before a measurement reports the exceeded quota, too."""
    monkeypatch.setattr(quota_watch, "_BUSY_S", 1000)
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        *_, said, result = await events_of(submit(session, "quickly"))
        assert isinstance(said, Stderr)
        assert "its limit is 1 MiB; delete files" in said.content
        assert isinstance(result, Result)
        assert result.success


async def test_background_writer_is_killed(backend: FakeBackend) -> None:
    """A background writer is killed with its sandbox. The next result says that the state is lost."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        assert (await result_of(submit(session))).success
        first = files_of(backend, session)
        write(first / "large", 3 * MIB)
        await until(lambda: session.restarts == 1)
        result = await result_of(submit(session))
        assert (result.success, result.kernel_restarted) == (True, True)
        workspace = files_of(backend, session)
        assert (workspace / "large").stat().st_size == 3 * MIB
        usage = session._runner.watch.usage
        await until(lambda: session._runner.watch.usage is not usage)  # it looks on, and lets it be
        assert session.restarts == 1


async def test_session_over_its_limit_from_the_beginning(backend: FakeBackend) -> None:
    """A session with an initial usage over its limit may continue. Its results contain a message."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open(workspace="mine")
        write(files_of(backend, session) / "large", 9 * MIB)
        await session.close("enough")
        session = await w.open(workspace="mine")
        await until(lambda: session._runner.watch.usage.size > 9 * MIB - 1)
        events = await events_of(submit(session))
        assert any(isinstance(event, Stderr) for event in events)
        assert session.restarts == 0


async def test_no_cell_runs_above_the_ceiling(backend: FakeBackend) -> None:
    """After a cell has written above twice the limit, no cell runs until a client deletes files."""

    async def add(cell: Cell) -> None:
        write(workspace_of(backend, cell) / "more", MIB)
        await cell.until_interrupted()

    backend.scripts["add"] = add
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        write(files_of(backend, session) / "large", 5 * MIB)
        await until(lambda: session.restarts == 1)
        assert (await result_of(submit(session))).success
        assert cause_of(await result_of(submit(session, "add"))) == "quota_exceeded"
        result = await result_of(submit(session))
        assert (cause_of(result), result.success) == ("quota_exceeded", False)
        assert "no cell runs" in str(result.error)
        async with session.borrow(changes=True):
            for path in files_of(backend, session).iterdir():
                path.unlink()
        await until(lambda: not session._runner.watch.usage.size)
        assert (await result_of(submit(session))).success


async def test_watch_outlives_errors(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that fails does not end the watch."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        measure, failures = session._runner.watch._measure, 0

        async def fail(max_files: int) -> Usage | None:
            nonlocal failures
            failures += 1
            if failures <= 3:
                raise RuntimeError("can't start new thread")
            return await measure(max_files)

        monkeypatch.setattr(session._runner.watch, "_measure", fail)
        await until(lambda: failures > 3)
        write(files_of(backend, session) / "large", 4096)
        await until(lambda: session._runner.watch.usage.size == 4096)


@pytest.mark.parametrize(
    ("found", "cause"), [(UNKNOWN, None), (Usage(complete=False), "quota_exceeded")]
)
async def test_a_failed_measurement_costs_no_cell_its_kernel(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, found: Usage, cause: str | None
) -> None:
    """What the broker cannot measure, by a fault that is not the sandbox's, is not taken for too large."""
    monkeypatch.setattr(quota_module, "_UNMEASURED_S", 0.05)

    async def usage(_self: FakeSandbox, _max_files: int) -> Usage:
        return found

    monkeypatch.setattr(FakeSandbox, "usage", usage)

    async def slow(_cell: Cell) -> None:
        await asyncio.sleep(0.5)

    backend.scripts["slow"] = slow
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        result = await result_of(submit(session, "slow"))
        assert (None if result.success else cause_of(result)) == cause
        assert session.restarts == (cause is not None)


async def test_short_cells_share_a_measurement() -> None:
    """Cells that follow each other quickly are not each measured, and the last one is measured soon."""
    measured = asyncio.Event()
    count = 0

    async def usage(_: int) -> Usage:
        nonlocal count
        count += 1
        measured.set()
        return Usage()

    quota = Quota(size=1, files=1)
    watch = QuotaWatch(quota, Usage(), usage=usage, grace=1.0, room=ROOM)
    task = asyncio.create_task(watch.run())
    begun = time.monotonic()
    try:
        for _ in range(300):
            watch.begin()
            await asyncio.sleep(0)
            watch.end()
            await asyncio.sleep(0)
        assert count <= 2 + (time.monotonic() - begun) / quota_watch._REST_S
        measured.clear()
        watch.end()
        async with asyncio.timeout(10):
            await measured.wait()
    finally:
        task.cancel()


async def upload(session: Session, size: int) -> None:
    async with asyncio.timeout(DEADLINE_S), session.upload(size):
        pass


class Measured:
    """A watch whose measurements the test completes.

    Attributes:
        measurements: those that have begun.
        actions: those that the watch has asked for.
    """

    def __init__(self) -> None:
        self.measurements: list[asyncio.Future[Usage | None]] = []
        self.actions: list[QuotaAction] = []
        self.watch = quota_watch.QuotaWatch(
            Quota(MIB, 50),
            Usage(),
            usage=self._measure,
            grace=2.0,
            room=ROOM,
        )
        self.watch.listeners.add(lambda action, _: self.actions.append(action))

    def _measure(self, _: int) -> asyncio.Future[Usage | None]:
        self.measurements.append(asyncio.get_running_loop().create_future())
        return self.measurements[-1]

    async def complete(self, number: int, usage: Usage) -> None:
        """Wait until this measurement has begun, and complete it while the next cell runs."""
        await until(lambda: len(self.measurements) == number)
        self.watch.begin()
        self.measurements[-1].set_result(usage)


@pytest.fixture
async def measured() -> AsyncIterator[Measured]:
    """A running watch that measures, since a cell has ended."""
    measured = Measured()
    running = asyncio.create_task(measured.watch.run())
    measured.watch.begin()
    measured.watch.end()
    yield measured
    running.cancel()


async def test_a_measurement_blames_no_later_cell(measured: Measured) -> None:
    """A cell is not interrupted for files that were measured and deleted before it began."""
    await measured.complete(1, Usage(2 * MIB, 1))
    await until(lambda: len(measured.measurements) == 2)
    measured.measurements[1].set_result(Usage())
    await until(lambda: measured.watch.usage == Usage())
    assert measured.actions == []


async def test_cells_shorter_than_a_measurement_do_not_escape_it(measured: Measured) -> None:
    """If a cell begins during each measurement, the second one counts for the running cell."""
    await measured.complete(1, Usage(2 * MIB, 1))
    await measured.complete(2, Usage(2 * MIB, 1))
    await until(lambda: measured.actions == [QuotaAction.INTERRUPT])


async def test_uploads_are_refused(backend: FakeBackend) -> None:
    """An upload that does not fit is refused. Deleting files makes room at once."""
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        workspace = files_of(backend, session)
        write(workspace / "large", MIB - 8192)
        await until(lambda: session._runner.watch.usage.size)
        with pytest.raises(TooLarge, match="its limit is 1 MiB: 1 MiB more does not fit"):
            await upload(session, MIB)
        await upload(session, 8192)
        (workspace / "large").unlink()
        await upload(session, MIB)
        for number in range(50):
            (workspace / f"{number}").touch()
        await until(lambda: session._runner.watch.usage.files == 50)
        with pytest.raises(TooLarge, match="50 files and directories, its limit is 50: one"):
            await upload(session, 0)


async def test_uploads_count_before_they_are_measured(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload counts once, while it runs and afterwards. A failed one does not count."""
    monkeypatch.setattr(quota_watch, "_IDLE_S", 1000)
    part = MIB // 4
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        workspace = files_of(backend, session)
        async with asyncio.timeout(DEADLINE_S):
            await upload(session, part)
            write(workspace / "one", part)
            async with session.upload(2 * part), session.upload(0) as growing:
                await growing.grow(part)
                with pytest.raises(TooLarge):
                    await growing.grow(4096)
                assert (
                    session._runner.watch.usage.size == part
                )  # it was looked for what was deleted
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


async def test_uploads_without_a_measurement(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a measurement in time, the last known usage decides."""

    async def nothing(_max_files: int) -> None:
        return None

    monkeypatch.setattr(quota_watch, "_FRESH_S", 0.01)
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        monkeypatch.setattr(session._runner.watch, "_measure", nothing)
        await upload(session, MIB)
        with pytest.raises(TooLarge):
            await upload(session, 1)


@pytest.mark.usefixtures("scripts")
async def test_the_watch_goes_on_after_an_unexpected_error(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed measurement is logged, and the quota is enforced for the next cells."""
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.0,))
    look, errors = QuotaState.look, [RuntimeError("unexpected")]

    def fail_once(state: QuotaState, *args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop()
        return look(state, *args, **kwargs)

    monkeypatch.setattr(QuotaState, "look", fail_once)
    async with world(backend, spec=SPEC) as w:
        session = await w.open()
        await until(lambda: not errors)
        async with asyncio.timeout(DEADLINE_S):
            result = await result_of(submit(session, "too much"))
        assert cause_of(result) == "quota_exceeded"
    assert "the background task 'quota watch' failed" in caplog.text
