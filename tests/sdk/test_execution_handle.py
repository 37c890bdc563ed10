"""Executions whose clients do not wait: handles survive lost connections, and other programs find them."""

from __future__ import annotations

import asyncio

import kernelbroker
import pytest
from kernelbroker import events
from kernelbroker.protocol.messages import ErrorBody, Execute

from tests.support.world import Breakpoint


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelbroker.execution_handle._FIRST_DELAY", 0.01)


async def test_the_result_needs_no_connection(connected):
    """A client submits and leaves. Another one finds the execution by its id, running and ended."""
    point = Breakpoint()

    async def cell(cell):
        cell.stdout("begun\n")
        await point(cell)
        cell.stdout("ended\n")

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session("s", keep=True) as session:
        handle = await session.submit("c", timeout=30)
        assert handle.session_id == "s"
        assert connected.ops(Execute) == []
    await point.reached()
    async with kernelbroker.connect() as other:
        again = await other.attach_execution(handle.execution_id)
        assert again.session_id == "s"
        assert (await again.status()).state == "running"
        with pytest.raises(TimeoutError):
            await again.result(timeout=0.05)
        point.go_on.set()
        result = await again.result()
        assert (result.success, result.stdout) == (True, "begun\nended\n")
        assert [e.seq async for e in again.events(after=2)] == [3, 4]
        await connected.end("s")
        status = await again.status()
        assert (status.state, status.success, status.session_id) == ("done", True, "s")
        assert (await (await other.attach_execution(handle.execution_id)).result()).success


async def test_without_a_session(connected, scripts):
    """`Broker.submit` runs a cell in a sandbox of its own, which is removed afterwards."""
    connected.cells["c"] = scripts.printing("1")
    async with kernelbroker.connect() as broker:
        handle = await broker.submit("c")
        assert (await handle.result()).stdout == "1"
        await connected.until(connected.no_sessions)


async def test_events_go_on_after_lost_connections(connected, scripts):
    """While connections are cut again and again, each event comes once, in order."""
    connected.cells["c"] = scripts.printing(*(f"{i}\n" for i in range(50)))
    async with kernelbroker.connect() as broker, broker.session() as session:
        handle = await session.submit("c")
        await handle.result()
        connected.budget, connected.budgets = 700, [650, 900, 1200, 333]
        got = [event async for event in handle.events()]
    assert connected.budget is None  # all cuts were made
    assert [event.seq for event in got] == list(range(1, 53))
    assert "".join(e.content for e in got if isinstance(e, events.Stdout)).split() == [
        str(i) for i in range(50)
    ]


async def test_a_submitted_cell_ends_after_its_session_was_left(connected):
    """Leaving a session lets what was submitted end, then the session closes; `run` afterwards does not."""
    released = asyncio.Event()

    async def hold(cell):
        await released.wait()
        cell.stdout("done")

    connected.cells["hold"] = hold
    async with kernelbroker.connect() as broker:
        async with broker.session() as session:
            handle = await session.submit("hold")
        assert (await handle.status()).state in ("queued", "running")
        released.set()
        assert (await handle.result()).stdout == "done"
        await connected.until(connected.no_sessions)


@pytest.mark.parametrize("in_session", [True, False])
async def test_a_submission_whose_answer_is_lost_runs_once(connected, in_session):
    """If the answer to a submission is lost, it is sent again, and the cell runs once."""
    ran = []

    async def count(cell):
        ran.append(cell)

    connected.cells["c"] = count
    async with kernelbroker.connect() as broker, broker.session() as session:
        await session.open()
        connected.budget = 20
        handle = await (session if in_session else broker).submit("c")
        assert (await handle.result()).success
    assert len(ran) == 1
    assert sum(path.endswith("/executions") for path in connected.requests) == 2


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_session_that_ends_between_two_tries(connected, scripts, monkeypatch, arrived):
    """If the session has ended before a submission is sent again, an earlier try counts if it arrived."""
    monkeypatch.setattr("kernelbroker.execution_handle._FIRST_DELAY", 0.5)
    connected.cells["c"] = scripts.printing("1")
    async with kernelbroker.connect() as broker, broker.session("s", keep=True) as session:
        await session.open()
        if arrived:
            connected.budget = 20
        else:
            connected.pause()
        submitting = asyncio.create_task(session.submit("c", execution_id="mine"))
        if arrived:
            await connected.until(lambda: connected.budget is None)
            connected.pause()
            log = connected.api.world.registry.get("s").execution("mine")
            await log.finished()
        else:
            await connected.until(lambda: len(connected.links) == 2)
            connected.drop()
        await connected.end("s")
        connected.unpause()
        if arrived:
            handle = await submitting
            assert (await handle.result()).stdout == "1"
        else:
            with pytest.raises(kernelbroker.SessionGone):
                await submitting


async def test_a_broker_that_stays_away(connected, monkeypatch):
    """If the broker cannot be reached for long, the error says how to ask again."""
    monkeypatch.setattr("kernelbroker.execution_handle.PATIENCE", 0.05)
    async with kernelbroker.connect() as broker:
        handle = await broker.submit("c")
        connected.is_up = False
        with pytest.raises(kernelbroker.ConnectionLost, match="attach_execution"):
            await handle.result()
        connected.is_up = True
        assert (await handle.result()).success


async def test_an_execution_that_lacks_events(connected, scripts):
    """A client that has seen more events than the broker still has gets the result, and does not wait."""
    connected.cells["c"] = scripts.printing("1")
    async with kernelbroker.connect() as broker, broker.session() as session:
        handle = await session.submit("c")
        await handle.result()
        [last] = [event async for event in handle.events(after=10)]
        assert isinstance(last, events.Result)
        assert [event.seq async for event in handle.events(after=2)] == [3]


async def test_refusals(connected):
    """Unknown ids, bad requests and closed sessions are refused at once, with what to do."""
    async with kernelbroker.connect() as broker:
        with pytest.raises(kernelbroker.NotFound, match="no execution nobody: check its id"):
            await broker.attach_execution("nobody")
        with pytest.raises(kernelbroker.BadRequest, match="timeout"):
            await broker.submit("c", timeout=-1)
        async with broker.session("s", keep=True) as session:
            await session.open()
            await connected.end("s")
            with pytest.raises(kernelbroker.SessionGone):
                await session.submit("c")


async def test_interrupting_a_submitted_execution(connected, scripts):
    """A handle interrupts its own execution, and takes a waiting one out of the queue."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        first, second = await session.submit("c"), await session.submit("c")
        async for _ in first.events():
            break
        await second.interrupt()
        assert (await second.result()).error_detail.cause == "interrupted"
        assert (await first.status()).state == "running"
        await first.interrupt()
        assert (await first.result()).error_detail.cause == "interrupted"


async def test_without_await(connected, scripts):
    """The synchronous client has the same handles."""
    connected.cells["c"] = scripts.printing("1\n", "2\n")

    def work():
        with kernelbroker.sync.connect() as broker, broker.session() as session:
            handle = session.submit("c")
            kinds = [type(event).__name__ for event in handle.events()]
            same = broker.attach_execution(handle.execution_id)
            alone = broker.submit("c")
            return kinds, same.result(timeout=30).stdout, alone.result().stdout

    kinds, stdout, alone = await asyncio.to_thread(work)
    assert kinds == ["Started", "Stdout", "Stdout", "Result"]
    assert stdout == alone == "1\n2\n"


async def test_the_error_of_a_full_broker_is_not_hidden(connected):
    """A refusal is raised as it is."""
    error = ErrorBody(code="bad_request", message="No.")
    assert error.message
    async with kernelbroker.connect() as broker:
        with pytest.raises(kernelbroker.BadRequest, match="template"):
            await broker.session(template="unknown").submit("c")
