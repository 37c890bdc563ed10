"""Cells of a session over scripted kernels: order, interruption, deaths, restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    SessionGone,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.events import Event, Input, Result, Started, Stdout
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_server.backends.base import EndCause
from kernelbroker_server.kernels.client import ChannelClosed
from kernelbroker_server.kernels.outputs import OutputLimits
from kernelbroker_server.pool import warm
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions import history
from kernelbroker_server.sessions.execution import Execution, ExecutionState
from kernelbroker_server.sessions.gate import Gate
from kernelbroker_server.sessions.journal import Journal
from kernelbroker_server.sessions.session import Session, SessionState

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.results import cause_of
from tests.support.waiting import DEADLINE_S, turns, until
from tests.support.world import (
    Breakpoint,
    deaf,
    events_of,
    interruptible,
    result_of,
    running,
    submit,
    world,
)


async def who(cell: Cell) -> None:
    """Tells which kernel runs it."""
    cell.stdout(cell.kernel.path.name)


async def kernel_of(execution: Execution) -> str:
    """Which kernel ran it, if its code was `who`."""
    return "".join(e.content for e in await events_of(execution) if isinstance(e, Stdout))


@dataclass
class Crowd:
    """Two sessions with a single turn between them, which a cell of the one has."""

    one: Session
    other: Session
    held: Execution
    hold: Breakpoint

    async def make_way(self) -> None:
        """The cell ends, and the turn is free."""
        self.hold.go_on.set()
        assert (await result_of(self.held)).success


@pytest.fixture
async def crowd(backend: FakeBackend) -> AsyncIterator[Crowd]:
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend, gate=Gate(1, 2)) as w:
        one, other = await w.open(), await w.open()
        held = submit(one, "hold")
        await hold.reached()
        yield Crowd(one, other, held, hold)


async def test_events_of_a_cell(backend: FakeBackend) -> None:
    """A cell gives started, its output, and its result, numbered from 1."""
    backend.scripts["who"] = who
    async with world(backend) as w:
        session = await w.open()
        execution = submit(session, "who")
        events = await events_of(execution)
        assert [type(event) for event in events] == [Started, Stdout, Result]
        assert [event.seq for event in events] == [1, 2, 3]
        assert {event.execution_id for event in events} == {execution.id}
        assert isinstance(events[0], Started)
        assert events[0].queued_s >= 0
        assert execution.state is ExecutionState.DONE


async def test_one_after_the_other(backend: FakeBackend) -> None:
    """Cells of one session run in order of arrival, one at a time; the next is not sent before."""
    first = Breakpoint()
    backend.scripts["first"] = first
    async with world(backend) as w:
        session = await w.open()
        executions = [submit(session, code) for code in ("first", "b", "c")]
        await first.reached()
        assert [cell.code for cell in backend.cells] == ["first"]
        assert [e.state for e in executions] == [
            ExecutionState.RUNNING,
            ExecutionState.QUEUED,
            ExecutionState.QUEUED,
        ]
        assert (session.state, session.queued) == (SessionState.BUSY, 2)
        first.go_on.set()
        for execution in executions:
            assert (await result_of(execution)).success
        assert [cell.code for cell in backend.cells] == ["first", "b", "c"]
        await until(lambda: session.state is SessionState.IDLE)


async def test_sessions_run_in_parallel(backend: FakeBackend) -> None:
    """A cell of one session holds up no other session."""
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend) as w:
        one, other = await w.open(), await w.open()
        held = submit(one, "hold")
        await hold.reached()
        assert (await result_of(submit(other))).success
        assert held.state is ExecutionState.RUNNING
        hold.go_on.set()
        assert (await result_of(held)).success


async def test_concurrency_is_bounded(backend: FakeBackend, crowd: Crowd) -> None:
    """Over all sessions no more cells run than may, and no more wait."""
    waiting = [submit(crowd.other), submit(crowd.one)]
    with pytest.raises(TooManyRequests):
        submit(crowd.other)
    assert len(crowd.other.executions) == 1
    assert [cell.code for cell in backend.cells] == ["hold"]
    await crowd.make_way()
    for execution in waiting:
        assert (await result_of(execution)).success


# Interruption and time.


@pytest.mark.parametrize("named", [False, True])
async def test_interrupt(backend: FakeBackend, named: bool) -> None:
    """An interrupt ends the running cell with the cause; the kernel is kept, the next cell runs."""
    backend.scripts |= {"wait": interruptible, "who": who}
    async with world(backend) as w:
        session = await w.open()
        before = await kernel_of(submit(session, "who"))
        execution, following = submit(session, "wait"), submit(session, "who")
        await running(execution)
        session.interrupt(execution.id if named else None)
        result = await result_of(execution)
        assert cause_of(result) == "interrupted"
        assert not result.kernel_restarted
        assert await kernel_of(following) == before


async def test_interrupt_at_any_moment(backend: FakeBackend) -> None:
    """One that comes before the kernel has the cell is kept for it; an idle kernel would drop it."""
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        for count in range(30):
            execution = submit(session, "wait")
            await turns(count)
            session.interrupt(execution.id)
            assert cause_of(await result_of(execution)) == "interrupted"


async def test_interrupt_of_one_that_waits(backend: FakeBackend) -> None:
    """An interrupt that names a waiting cell takes it out of the line; the running one runs on."""
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend) as w:
        session = await w.open()
        held, waiting = submit(session, "hold"), submit(session, "waiting")
        await hold.reached()
        session.interrupt(waiting.id)
        assert cause_of(await result_of(waiting)) == "interrupted"
        hold.go_on.set()
        assert (await result_of(held)).success
        assert [cell.code for cell in backend.cells] == ["hold"]
        assert w.gate.waiting == 0


async def test_interrupt_of_one_that_waits_for_its_turn(backend: FakeBackend, crowd: Crowd) -> None:
    """A cell that waits for a turn among all sessions can be interrupted as well."""
    waiting = submit(crowd.other, "waiting")
    await turns(5)
    crowd.other.interrupt(waiting.id)
    await crowd.make_way()
    assert cause_of(await result_of(waiting)) == "interrupted"
    assert (await result_of(submit(crowd.other))).success
    assert "waiting" not in [cell.code for cell in backend.cells]


async def test_interrupt_of_nothing(backend: FakeBackend) -> None:
    """To interrupt where nothing runs, or what has ended, does nothing to the next cell."""
    async with world(backend) as w:
        session = await w.open()
        session.interrupt()
        execution = submit(session)
        await result_of(execution)
        session.interrupt(execution.id)
        execution.interrupt()
        session.interrupt("unknown")
        assert (await result_of(submit(session))).success


async def test_timeout(backend: FakeBackend) -> None:
    """A cell that takes too long is interrupted, and keeps its kernel if it reacts."""
    backend.scripts |= {"wait": interruptible, "who": who}
    async with world(backend) as w:
        session = await w.open()
        before = await kernel_of(submit(session, "who"))
        result = await result_of(submit(session, "wait", timeout=0.05))
        assert cause_of(result) == "timeout"
        assert "0.05 s" in (result.error or "")
        assert not result.kernel_restarted
        assert await kernel_of(submit(session, "who")) == before
        assert session.restarts == 0


async def test_timeout_and_grace(backend: FakeBackend) -> None:
    """A cell that does not react to the interrupt either loses its kernel, and its result says so."""
    backend.scripts |= {"deaf": deaf, "who": who}
    async with world(backend) as w:
        session = await w.open()
        before = await kernel_of(submit(session, "who"))
        execution, following = submit(session, "deaf", timeout=0.05), submit(session, "who")
        result = await result_of(execution)
        assert cause_of(result) == "timeout"
        assert result.kernel_restarted
        assert await kernel_of(following) != before
        assert not (await result_of(following)).kernel_restarted  # told already
        assert session.restarts == 1


async def test_timeout_of_the_session(backend: FakeBackend) -> None:
    """A cell that asks for no timeout has the default one."""
    backend.scripts["wait"] = interruptible
    async with world(backend, default_timeout=0.05) as w:
        assert cause_of(await result_of(submit(await w.open(), "wait"))) == "timeout"


async def test_gateway_that_does_not_read(backend: FakeBackend) -> None:
    """A gateway that stops reading holds a cell no longer than its timeout, nor the session's end."""
    async with world(backend) as w:
        session = await w.open()
        await result_of(submit(session))
        backend.cells[-1].kernel.stop_reading()
        before = time.monotonic()
        result = await result_of(submit(session, timeout=0.05, env={"X": "x" * 10**6}))
        assert cause_of(result) == "timeout"
        assert result.kernel_restarted
        assert time.monotonic() - before < 2
        assert (await result_of(submit(session))).success


async def test_close_while_the_gateway_does_not_read(backend: FakeBackend) -> None:
    """A session whose gateway takes no message can be closed at once."""
    async with world(backend) as w:
        session = await w.open()
        for sandbox in backend.live.values():
            sandbox.gateway.stop_reading()
        execution = submit(session, "x", env={"X": "x" * 10**6})
        await until(lambda: execution.state is ExecutionState.RUNNING)
        await turns(20)
        async with asyncio.timeout(2):
            await session.close("enough")
        assert (await result_of(execution)).kernel_restarted


# Deaths.


@pytest.mark.parametrize("cause", list(EndCause))
async def test_death(backend: FakeBackend, cause: EndCause) -> None:
    """A kernel that dies ends its cell at once with the cause; the next cell has a fresh one."""

    async def die(cell: Cell) -> None:
        cell.stdout("about to die\n")
        (sandbox,) = [s for s in backend.live.values() if s.gateway is cell.kernel]
        cell.kernel.spawn(asyncio.shield(asyncio.ensure_future(sandbox.die(cause, "so it goes"))))
        await asyncio.Event().wait()

    backend.scripts["die"] = die
    async with world(backend) as w:
        session = await w.open()
        execution, following = submit(session, "die"), submit(session, "next")
        result = await result_of(execution)
        assert cause_of(result) == cause.value
        assert result.error_detail.value == "so it goes"
        assert result.kernel_restarted
        result = await result_of(following)
        assert result.success
        assert not result.kernel_restarted
        assert session.restarts == 1


async def test_channel_lost(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that closes under a cell ends it as lost."""
    monkeypatch.setattr(warm, "END_GRACE_S", 0.01)

    async def cut(cell: Cell) -> None:
        for channel in list(cell.kernel.channels):
            channel.cut()

    backend.scripts["cut"] = cut
    async with world(backend) as w:
        session = await w.open()
        assert cause_of(await result_of(submit(session, "cut"))) == "sandbox_lost"
        assert (await result_of(submit(session))).success


async def test_a_result_that_cannot_be_kept(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fault of the broker's own it is, there is a result, and nobody waits for ever."""
    append = Journal.append

    def refuse(journal: Journal, event: Event) -> None:
        if isinstance(event, Result) and event.success:
            raise RuntimeError("a fault")
        append(journal, event)

    monkeypatch.setattr(Journal, "append", refuse)
    async with world(backend) as w:
        session = await w.open()
        execution, following = submit(session), submit(session)
        assert cause_of(await result_of(execution)) == "sandbox_lost"
        assert cause_of(await result_of(following)) == "rejected"
        assert session.closed_reason == "a fault of the broker's own"
    assert "could not be kept" in caplog.text


async def test_death_while_idle(backend: FakeBackend) -> None:
    """Where a kernel died between two cells, the next result says that the state is lost; once."""
    backend.scripts["who"] = who
    async with world(backend) as w:
        session = await w.open()
        name = await kernel_of(submit(session, "who"))
        (sandbox,) = [s for s in backend.live.values() if s.gateway.path.name == name]
        await sandbox.die()
        execution = submit(session, "who")
        result = await result_of(execution)
        assert (result.success, result.kernel_restarted) == (True, True)
        assert await kernel_of(execution) != name
        assert not (await result_of(submit(session))).kernel_restarted


async def test_no_sandbox_after_a_death(backend: FakeBackend) -> None:
    """Where no sandbox is to be had a cell is rejected with the reason, and later ones try again."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    limits = PoolLimits(min_size=0, max_size=1)
    async with world(backend, pool=limits, acquire_timeout=0.1) as w:
        session = await w.open()
        backend.on_launch = launch
        assert not (await result_of(submit(session, "die"))).success
        result = await result_of(submit(session))
        assert cause_of(result) == "rejected"
        assert "no sandbox became free" in (result.error or "")
        hold.set()
        result = await result_of(submit(session))
        while not result.success:
            result = await result_of(submit(session))
        assert session.restarts == 1


# Restart.


async def test_restart_while_running(backend: FakeBackend) -> None:
    """A restart ends the running cell and keeps the line; the rest runs on a fresh kernel."""
    backend.scripts |= {"deaf": deaf, "who": who}
    async with world(backend) as w:
        session = await w.open()
        name = await kernel_of(submit(session, "who"))
        execution, following = submit(session, "deaf"), submit(session, "who")
        await running(execution)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(session.restart(), session.restart())
        result = await result_of(execution)
        assert (cause_of(result), result.error_detail.name) == ("interrupted", "Restarted")
        assert await kernel_of(following) != name
        assert not (await result_of(following)).kernel_restarted
        assert name.removesuffix(".sock") not in backend.live


async def test_restart_while_idle(backend: FakeBackend) -> None:
    """A restart that was asked for is no loss of state to be told of."""
    async with world(backend) as w:
        session = await w.open()
        async with asyncio.timeout(DEADLINE_S):
            await session.restart()
        assert session.restarts >= 1
        assert not (await result_of(submit(session))).kernel_restarted


async def test_restart_without_a_sandbox(backend: FakeBackend) -> None:
    """A restart for which there is no sandbox says so, and the session can be used later."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    async with world(backend, pool=PoolLimits(0, 1), acquire_timeout=0.1) as w:
        session = await w.open()
        backend.on_launch = launch
        with pytest.raises(Unavailable):
            await session.restart()
        hold.set()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if (await result_of(submit(session))).success:
                    break


async def test_restart_while_a_cell_waits_for_its_turn(crowd: Crowd) -> None:
    """A cell that waits for its turn among all sessions stays in line through a restart."""
    waiting = submit(crowd.other)
    await turns(5)
    restarting = asyncio.create_task(crowd.other.restart())
    await turns(5)
    await crowd.make_way()
    async with asyncio.timeout(DEADLINE_S):
        await restarting
    result = await result_of(waiting)
    assert (result.success, result.kernel_restarted) == (True, False)
    assert crowd.other.restarts == 1


async def test_close_while_restarting(backend: FakeBackend) -> None:
    """Who waits for a restart when the session is closed is told so, and does not wait for ever."""

    async def launch(_sandbox: object) -> None:
        await asyncio.Event().wait()

    async with world(backend, pool=PoolLimits(0, 1)) as w:
        session = await w.open()
        backend.on_launch = launch
        restarting = asyncio.create_task(session.restart())
        await until(lambda: w.pool.status().pending_requests)
        await session.close("enough")
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(SessionGone, match="enough"):
                await restarting


# Close.


async def test_close_while_running(backend: FakeBackend) -> None:
    """A session that is closed ends its running cell and those in line, each with the reason."""
    backend.scripts["deaf"] = deaf
    async with world(backend) as w:
        session = await w.open()
        executions = [submit(session, "deaf"), submit(session), submit(session)]
        await running(executions[0])
        async with asyncio.timeout(DEADLINE_S):
            await session.close("enough")
        results = [execution.journal.result for execution in executions]
        assert [result.error for result in results if result] == ["SessionClosed: enough"] * 3
        assert session.state is SessionState.CLOSED
        with pytest.raises(SessionGone, match="enough"):
            submit(session)
        with pytest.raises(SessionGone, match="enough"):
            session.interrupt()
        with pytest.raises(SessionGone, match="enough"):
            await session.restart()


async def test_close_while_waiting_for_a_turn(crowd: Crowd) -> None:
    """A cell that waits for its turn when its session is closed is told the reason."""
    waiting = submit(crowd.other)
    await turns(5)
    async with asyncio.timeout(DEADLINE_S):
        await crowd.other.close("enough")
    assert (await result_of(waiting)).error == "SessionClosed: enough"
    await crowd.make_way()


@pytest.mark.parametrize("count", range(12))
async def test_close_at_any_moment(backend: FakeBackend, count: int) -> None:
    """Closed at whatever turn of the loop, every execution has one result and the sandbox goes."""
    async with world(backend) as w:
        session = await w.open()
        executions = [submit(session), submit(session)]
        await turns(count)
        async with asyncio.timeout(DEADLINE_S):
            await session.close("enough")
        for execution in executions:
            assert execution.journal.result is not None
        await until(lambda: w.pool.status().busy_containers == 0)


async def test_closed_by_two(backend: FakeBackend) -> None:
    """To close a session again waits for its end, and keeps the first reason."""
    async with world(backend) as w:
        session = await w.open()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(session.close("first"), session.close("second"))
        assert session.closed_reason == "first"


# What may be submitted.


async def test_the_same_id_twice(backend: FakeBackend) -> None:
    """The same request under the same id is the same execution; another one is refused."""
    async with world(backend) as w:
        session = await w.open()
        first = submit(session, "a", execution_id="mine")
        assert submit(session, "a", execution_id="mine") is first
        await result_of(first)
        assert submit(session, "a", execution_id="mine") is first
        with pytest.raises(Conflict, match="mine"):
            submit(session, "b", execution_id="mine")
        assert [cell.code for cell in backend.cells] == ["a"]
        assert w.gate.waiting == 0


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (ExecutionRequest(code="x" * 11), "11 characters"),
        (ExecutionRequest(code="", preview_rows=501), "500"),
        (ExecutionRequest(code="", timeout=301), "300 s"),
    ],
)
async def test_limits(backend: FakeBackend, request_: ExecutionRequest, told: str) -> None:
    """A request beyond a limit is refused with the limit, and leaves no trace."""
    async with world(backend, max_code_chars=10) as w:
        session = await w.open()
        with pytest.raises(BadRequest, match=told):
            session.submit(request_)
        assert not session.executions
        assert w.gate.waiting == 0


async def test_unknown_execution(backend: FakeBackend) -> None:
    """An execution that a session does not know is not found."""
    async with world(backend) as w:
        session = await w.open()
        with pytest.raises(NotFound, match="nothing"):
            session.execution("nothing")
        execution = submit(session)
        assert session.execution(execution.id) is execution
        await result_of(execution)


async def test_history_is_bounded(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session forgets the oldest executions that have ended, by number and by size."""
    monkeypatch.setattr(history, "_HISTORY", 3)

    async def talk(cell: Cell) -> None:
        cell.stdout("x" * 1000)

    backend.scripts["talk"] = talk
    async with world(backend) as w:
        session = await w.open()
        executions = []
        for _ in range(6):
            executions.append(submit(session))
            await result_of(executions[-1])
        assert list(session.executions.values()) == executions[-3:]
        monkeypatch.setattr(history, "_HISTORY_BYTES", 1500)
        for _ in range(3):
            executions.append(submit(session, "talk"))
            await result_of(executions[-1])
        assert executions[-1].id in session.executions
        held = [e.journal.size for e in session.executions.values()]
        assert sum(held[:-1]) <= 1500
        for large in ({"secrets": {"S": "x" * 1000}}, {"env": {"E": "x" * 1000}}):
            executions.append(submit(session, **large))
            await result_of(executions[-1])
        assert list(session.executions.values()) == executions[-1:]  # what they ask for counts


async def test_history_keeps_what_has_not_ended(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An execution that runs or waits is never forgotten."""
    monkeypatch.setattr(history, "_HISTORY", 1)
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend) as w:
        session = await w.open()
        executions = [submit(session, "hold"), submit(session), submit(session)]
        assert list(session.executions.values()) == executions
        hold.go_on.set()
        for execution in executions:
            await result_of(execution)


async def test_output_is_bounded(backend: FakeBackend) -> None:
    """A cell whose output goes beyond its budget runs on, and its journal stays small."""

    async def talk(cell: Cell) -> None:
        for _ in range(100):
            cell.stdout("x" * 1000)
            cell.send("iopub", "clear_output", {"wait": False})

    backend.scripts["talk"] = talk
    async with world(backend, output=OutputLimits(max_output_size=5000)) as w:
        execution = submit(await w.open(), "talk")
        result = await result_of(execution)
        assert result.success
        assert result.truncated is not None
        assert result.truncated.output_bytes > 90_000
        assert execution.journal.size < 10_000


async def test_late_output_does_not_reach_the_next_cell(backend: FakeBackend) -> None:
    """What a replaced kernel still says reaches nobody."""
    late = Breakpoint()

    async def linger(cell: Cell) -> None:
        cell.stdout("running\n")
        await late(cell)
        cell.stdout("too late")

    backend.scripts["linger"] = linger
    async with world(backend) as w:
        session = await w.open()
        execution = submit(session, "linger", timeout=0.05)
        following = submit(session)
        await result_of(execution)
        late.go_on.set()
        events = await events_of(following)
        assert not [event for event in events if isinstance(event, Stdout)]


async def test_input(backend: FakeBackend) -> None:
    """A cell's question is an event, and its answer reaches the kernel."""

    async def ask(cell: Cell) -> None:
        assert cell.content["allow_stdin"]
        cell.send("stdin", "input_request", {"prompt": "name? ", "password": False})
        cell.stdout(await cell.answers.get())

    backend.scripts["ask"] = ask
    async with world(backend) as w:
        session = await w.open()
        execution = session.submit(ExecutionRequest(code="ask"), allow_stdin=True)
        async with asyncio.timeout(DEADLINE_S):
            async for entry in execution.journal.follow():
                if isinstance(entry.event, Input):
                    assert entry.event.prompt == "name? "
                    await execution.answer("Ada \ud800")
        events = await events_of(execution)
        assert Stdout(content="Ada \ud800", execution_id=execution.id, seq=3) in events
        with pytest.raises(ChannelClosed):  # it would be the next one's
            await execution.answer("late")


async def test_many_interrupts(backend: FakeBackend) -> None:
    """A storm of interrupts ends the cell once and leaves nothing behind."""
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        execution = submit(session, "wait")
        await running(execution)
        for _ in range(200):
            session.interrupt()
        assert cause_of(await result_of(execution)) == "interrupted"
        assert (await result_of(submit(session))).success
