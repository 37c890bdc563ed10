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
from kernelbroker_server.kernels.channel import ChannelClosed, KernelChannel
from kernelbroker_server.kernels.outputs import OutputLimits
from kernelbroker_server.pool import warm_sandbox
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions import memory_store
from kernelbroker_server.sessions.admission import Admission
from kernelbroker_server.sessions.execution import Execution
from kernelbroker_server.sessions.lease import Lease
from kernelbroker_server.sessions.machine import SessionMachine
from kernelbroker_server.sessions.memory_log import MemoryLog
from kernelbroker_server.sessions.runner import SessionRunner
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.sessions.store import ExecutionLog
from kernelbroker_server.workspaces.quota_watch import QuotaWatch

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.results import cause_of
from tests.support.waiting import DEADLINE_S, MOMENTS, moment, turns, until
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


async def kernel_of(execution: ExecutionLog) -> str:
    """Which kernel ran it, if its code was `who`."""
    return "".join(e.content for e in await events_of(execution) if isinstance(e, Stdout))


@dataclass
class Crowd:
    """Two sessions with a single turn between them, which a cell of the one has."""

    one: Session
    other: Session
    held: ExecutionLog
    hold: Breakpoint

    async def make_way(self) -> None:
        """The cell ends, and the turn is free."""
        self.hold.go_on.set()
        assert (await result_of(self.held)).success


@pytest.fixture
async def crowd(backend: FakeBackend) -> AsyncIterator[Crowd]:
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend, admission=Admission(1, 2)) as w:
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
        assert execution.state == "done"


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
            "running",
            "queued",
            "queued",
        ]
        assert (session.state, session.queued) == ("busy", 2)
        first.go_on.set()
        for execution in executions:
            assert (await result_of(execution)).success
        assert [cell.code for cell in backend.cells] == ["first", "b", "c"]
        await until(lambda: session.state == "idle")


async def test_sessions_run_in_parallel(backend: FakeBackend) -> None:
    """A cell of one session holds up no other session."""
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend) as w:
        one, other = await w.open(), await w.open()
        held = submit(one, "hold")
        await hold.reached()
        assert (await result_of(submit(other))).success
        assert held.state == "running"
        hold.go_on.set()
        assert (await result_of(held)).success


async def test_running_and_waiting_cells_are_bounded(backend: FakeBackend, crowd: Crowd) -> None:
    """The numbers of running and waiting cells are limited over all sessions."""
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
async def test_an_interrupt_ends_the_running_cell(backend: FakeBackend, named: bool) -> None:
    """An interrupt ends the running cell with the cause; the kernel is kept."""
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
    """An early interrupt is kept for the cell; an idle kernel would drop it."""
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        for count in range(30):
            execution = submit(session, "wait")
            await turns(count)
            session.interrupt(execution.id)
            assert cause_of(await result_of(execution)) == "interrupted"


async def test_interrupt_of_a_waiting_cell(backend: FakeBackend) -> None:
    """An interrupt of a waiting cell takes it out of the queue; the running one continues."""
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
        assert w.admission.waiting == 0


async def test_interrupt_of_a_cell_that_waits_for_its_turn(
    backend: FakeBackend, crowd: Crowd
) -> None:
    """A cell that waits for its turn among all sessions can be interrupted."""
    waiting = submit(crowd.other, "waiting")
    await turns(5)
    crowd.other.interrupt(waiting.id)
    await crowd.make_way()
    assert cause_of(await result_of(waiting)) == "interrupted"
    assert (await result_of(submit(crowd.other))).success
    assert "waiting" not in [cell.code for cell in backend.cells]


async def test_an_interrupt_without_a_running_cell_does_nothing(backend: FakeBackend) -> None:
    """An interrupt without a running cell does not affect the next cell."""
    async with world(backend) as w:
        session = await w.open()
        session.interrupt()
        execution = submit(session)
        await result_of(execution)
        session.interrupt(execution.id)
        session.interrupt("unknown")
        assert (await result_of(submit(session))).success


async def test_a_timeout_interrupts_the_cell(backend: FakeBackend) -> None:
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


async def test_a_cell_that_ignores_its_interrupt_loses_its_kernel(backend: FakeBackend) -> None:
    """A cell that ignores its interrupt loses its kernel after the grace period."""
    backend.scripts |= {"deaf": deaf, "who": who}
    async with world(backend) as w:
        session = await w.open()
        before = await kernel_of(submit(session, "who"))
        execution, following = submit(session, "deaf", timeout=0.05), submit(session, "who")
        result = await result_of(execution)
        assert cause_of(result) == "timeout"
        assert result.kernel_restarted
        assert await kernel_of(following) != before
        assert not (await result_of(following)).kernel_restarted  # reported already
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
        await until(lambda: execution.state == "running")
        await turns(20)
        async with asyncio.timeout(2):
            await session.close("enough")
        assert (await result_of(execution)).kernel_restarted


# Deaths.


@pytest.mark.parametrize("cause", list(EndCause))
async def test_a_dead_kernel_ends_its_cell(backend: FakeBackend, cause: EndCause) -> None:
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


async def test_a_lost_channel_ends_its_cell(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that closes while a cell runs ends it as lost."""
    monkeypatch.setattr(warm_sandbox, "END_GRACE_S", 0.01)

    async def cut(cell: Cell) -> None:
        for channel in list(cell.kernel.channels):
            channel.cut()

    backend.scripts["cut"] = cut
    async with world(backend) as w:
        session = await w.open()
        assert cause_of(await result_of(submit(session, "cut"))) == "sandbox_lost"
        assert (await result_of(submit(session))).success


async def test_a_result_that_cannot_be_stored_is_replaced(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a result cannot be stored, the execution still gets one, and no reader waits."""
    append = MemoryLog.append

    def refuse(log: MemoryLog, event: Event) -> None:
        if isinstance(event, Result) and event.success:
            raise RuntimeError("a fault")
        append(log, event)

    monkeypatch.setattr(MemoryLog, "append", refuse)
    async with world(backend) as w:
        session = await w.open()
        execution, following = submit(session), submit(session)
        assert cause_of(await result_of(execution)) == "sandbox_lost"
        assert cause_of(await result_of(following)) == "sandbox_lost"
        monkeypatch.undo()
        assert (await result_of(submit(session))).success
    assert "could not be stored" in caplog.text


FAULTS = [
    (Execution, "run"),
    (KernelChannel, "release"),
    (KernelChannel, "send_soon"),
    (KernelChannel, "subscribe"),
    (Lease, "prepare"),
    (MemoryLog, "begin"),
    (MemoryLog, "stored"),
    (QuotaWatch, "before_result"),
    (QuotaWatch, "begin"),
    (SessionMachine, "turn_granted"),
    (SessionRunner, "notice_death"),
]
"""What an execution calls on its way, in any order."""


@pytest.mark.parametrize(("kind", "name"), FAULTS, ids=[name for _, name in FAULTS])
async def test_a_fault_of_the_broker_is_one_result(
    backend: FakeBackend, kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the broker fails, the cell has exactly one result, and the session goes on."""
    called = getattr(kind, name)
    faults = 0

    def fails(*args: object, **kwargs: object) -> object:
        nonlocal faults
        if not faults:
            faults += 1
            raise RuntimeError("injected")
        return called(*args, **kwargs)

    async with world(backend) as w:
        session = await w.open()
        monkeypatch.setattr(kind, name, fails)
        results = [each for each in await events_of(submit(session)) if isinstance(each, Result)]
        assert (len(results), faults) == (1, 1)
        assert (await result_of(submit(session))).success
        await session.restart()


async def test_a_death_while_idle_is_reported_once(backend: FakeBackend) -> None:
    """If a kernel dies between two cells, the next result reports the lost state, once."""
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
    """If no sandbox is available, a cell is rejected with the reason, and later ones try again."""
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


async def test_restart_ends_the_running_cell(backend: FakeBackend) -> None:
    """A restart ends the running cell and keeps the queue, which runs on a fresh kernel."""
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
        assert (await result_of(following)).kernel_restarted, "the fresh kernel's first result"
        assert not (await result_of(submit(session))).kernel_restarted
        assert name.removesuffix(".sock") not in backend.live


async def test_the_first_result_after_a_restart_says_so(backend: FakeBackend) -> None:
    """A restart is told by the first result of the fresh kernel, and by no other one."""
    async with world(backend) as w:
        session = await w.open()
        async with asyncio.timeout(DEADLINE_S):
            await session.restart()
        assert session.restarts >= 1
        assert [(await result_of(submit(session))).kernel_restarted for _ in range(2)] == [
            True,
            False,
        ]


async def test_restart_without_a_sandbox(backend: FakeBackend) -> None:
    """A restart without a sandbox fails with the reason, and the session can be used later."""
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
    assert (result.success, result.kernel_restarted) == (True, True)
    assert crowd.other.restarts == 1


async def test_close_answers_waiting_restarts(backend: FakeBackend) -> None:
    """A caller that waits for a restart gets the reason when the session is closed."""

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


async def test_close_ends_running_and_waiting_cells(backend: FakeBackend) -> None:
    """A closed session ends its running and waiting cells, each with the reason."""
    backend.scripts["deaf"] = deaf
    async with world(backend) as w:
        session = await w.open()
        executions = [submit(session, "deaf"), submit(session), submit(session)]
        await running(executions[0])
        async with asyncio.timeout(DEADLINE_S):
            await session.close("enough")
        results = [execution.result for execution in executions]
        assert [result.error for result in results if result] == ["SessionClosed: enough"] * 3
        assert session.state == "closed"
        with pytest.raises(SessionGone, match="enough"):
            submit(session)
        with pytest.raises(SessionGone, match="enough"):
            session.interrupt()
        with pytest.raises(SessionGone, match="enough"):
            await session.restart()


async def test_close_while_waiting_for_a_turn(crowd: Crowd) -> None:
    """A cell that waits for its turn gets the reason when its session is closed."""
    waiting = submit(crowd.other)
    await turns(5)
    async with asyncio.timeout(DEADLINE_S):
        await crowd.other.close("enough")
    assert (await result_of(waiting)).error == "SessionClosed: enough"
    await crowd.make_way()


@pytest.mark.parametrize("count", MOMENTS)
async def test_close_at_any_moment(backend: FakeBackend, count: int | None) -> None:
    """If a session is closed at any moment, every execution has one result and the sandbox is released."""
    async with world(backend) as w:
        session = await w.open()
        executions = [submit(session), submit(session)]
        await moment(count, lambda: all(execution.result for execution in executions))
        async with asyncio.timeout(DEADLINE_S):
            await session.close("enough")
        for execution in executions:
            assert execution.result is not None
        await until(lambda: w.pool.status().busy_containers == 0)


async def test_a_second_close_waits_and_keeps_the_reason(backend: FakeBackend) -> None:
    """A second close waits for the end, and the first reason is kept."""
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
        assert w.admission.waiting == 0


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (ExecutionRequest(code="x" * 11), "11 characters"),
        (ExecutionRequest(code="", preview_rows=501), "500"),
        (ExecutionRequest(code="", timeout=301), "300 s"),
        (ExecutionRequest(code="", secrets={f"N{n}": "v" for n in range(101)}), "100 values"),
        (ExecutionRequest(code="", secrets={"A": "x" * 65_536, "B": "y"}), "65,536 characters"),
        (ExecutionRequest(code="", secrets={"A": "\n" * 2001}), "2,000 lines"),
    ],
)
async def test_a_request_over_a_limit_is_refused(
    backend: FakeBackend, request_: ExecutionRequest, told: str
) -> None:
    """A request over a limit is refused with the limit, and leaves no trace."""
    async with world(backend, max_code_chars=10) as w:
        session = await w.open()
        with pytest.raises(BadRequest, match=told):
            w.service.executions.submit(session, request_)
        assert not session.executions
        assert w.admission.waiting == 0


async def test_an_unknown_execution_is_not_found(backend: FakeBackend) -> None:
    """An unknown execution is not found."""
    async with world(backend) as w:
        session = await w.open()
        with pytest.raises(NotFound, match="nothing"):
            session.execution("nothing")
        execution = submit(session)
        assert session.execution(execution.id) is execution
        await result_of(execution)


async def test_history_is_bounded(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session forgets the oldest executions that have ended, by number and by size."""
    monkeypatch.setattr(memory_store, "REMEMBERED", 3)

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
        monkeypatch.setattr(memory_store, "_EXECUTION_BYTES", 1500)
        for _ in range(3):
            executions.append(submit(session, "talk"))
            await result_of(executions[-1])
        assert executions[-1].id in session.executions
        held = [e.size for e in session.executions.values()]
        assert sum(held[:-1]) <= 1500
        for large in ({"secrets": {"S": "x" * 1000}}, {"env": {"E": "x" * 1000}}):
            executions.append(submit(session, **large))
            await result_of(executions[-1])
        assert list(session.executions.values()) == executions[-1:]  # what they ask for counts


async def test_history_keeps_what_has_not_ended(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An execution that runs or waits is never forgotten."""
    monkeypatch.setattr(memory_store, "REMEMBERED", 1)
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend) as w:
        session = await w.open()
        executions = [submit(session, "hold"), submit(session), submit(session)]
        assert list(session.executions.values()) == executions
        hold.go_on.set()
        for execution in executions:
            await result_of(execution)


async def test_output_over_the_budget_is_cut(backend: FakeBackend) -> None:
    """A cell whose output exceeds its budget continues, and its log stays small."""

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
        assert execution.size < 10_000


async def test_late_output_does_not_reach_the_next_cell(backend: FakeBackend) -> None:
    """Late output of a replaced kernel reaches no cell."""
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


async def test_input_is_asked_and_answered(backend: FakeBackend) -> None:
    """A cell's `input()` is an event, and the answer reaches the kernel."""

    async def ask(cell: Cell) -> None:
        assert cell.content["allow_stdin"]
        cell.send("stdin", "input_request", {"prompt": "name? ", "password": False})
        cell.stdout(await cell.answers.get())

    backend.scripts["ask"] = ask
    async with world(backend) as w:
        session = await w.open()
        ask_ = ExecutionRequest(code="ask")
        execution = w.service.executions.submit(session, ask_, allow_stdin=True)
        async with asyncio.timeout(DEADLINE_S):
            async for entry in execution.follow():
                if isinstance(entry.event, Input):
                    assert entry.event.prompt == "name? "
                    await session.answer(execution.id, "Ada \ud800")
        events = await events_of(execution)
        assert Stdout(content="Ada \ud800", execution_id=execution.id, seq=3) in events
        with pytest.raises(ChannelClosed):  # it would be the next one's
            await session.answer(execution.id, "late")


async def test_many_interrupts_are_one_task(backend: FakeBackend) -> None:
    """Many interrupts are one task with one or two calls, and end the cell once."""
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        execution = submit(session, "wait")
        await running(execution)
        tasks = len(asyncio.all_tasks())
        for _ in range(200):
            session.interrupt()
        assert len(asyncio.all_tasks()) <= tasks + 1
        assert cause_of(await result_of(execution)) == "interrupted"
        assert sum(sandbox.gateway.interrupts for sandbox in backend.live.values()) <= 2
        assert (await result_of(submit(session))).success


async def test_a_condemned_sandbox_runs_no_cell(backend: FakeBackend, crowd: Crowd) -> None:
    """A cell that waits for its turn when its sandbox is condemned runs in the next one, and says so."""
    backend.scripts["who"] = who
    await turns(5)
    condemned = crowd.other._runner._lease.current
    assert condemned is not None
    waiting = submit(crowd.other, "who")
    await turns(5)
    crowd.other._runner.apply(crowd.other._machine.condemn("quota_exceeded"))
    await crowd.make_way()
    result = await result_of(waiting)
    assert result.kernel_restarted
    assert await kernel_of(waiting) != f"{condemned.sandbox.id}.sock"


async def test_interrupt_as_the_turn_comes(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A cell that is interrupted at any moment while its turn comes ends once, and holds no turn."""
    ended_by_itself = False
    moment = 0
    while not ended_by_itself:
        hold = Breakpoint()
        backend.scripts["hold"] = hold
        async with world(backend, admission=Admission(1, 2)) as w:
            one, other = await w.open(), await w.open()
            held = submit(one, "hold")
            await hold.reached()
            waiting = submit(other)
            await turns(3)
            hold.go_on.set()
            await turns(moment)
            ended_by_itself = waiting.result is not None
            other.interrupt(waiting.id)
            await result_of(waiting)
            assert (await result_of(held)).success
            assert (await result_of(submit(other))).success
        moment += 1
    assert moment > 5
    assert "failed" not in caplog.text
