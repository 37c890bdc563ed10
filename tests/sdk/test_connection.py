"""Lost connections, back-pressure and cancellation: nothing twice, nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import kernelbroker
import pytest
from kernelbroker import dial, events
from kernelbroker import inbox as inbox_module
from kernelbroker.protocol.messages import (
    Close,
    Closed,
    ErrorBody,
    ErrorReply,
    Execute,
    Interrupt,
    Open,
    Resume,
)


async def turns_until(predicate):
    """Let the loop turn until what is under way on the sockets has come."""
    async with asyncio.timeout(5):
        while not predicate():  # noqa: ASYNC110 - nothing tells of it; this is no waiting for time
            await asyncio.sleep(0)


def counting(count, lose_at, broker):
    """A cell that prints numbers and has the connection cut in between."""

    async def cell(execution):
        for number in range(count):
            if number in lose_at:
                broker.drop()
                await broker.until(lambda: not execution.watchers)
            await execution.emit(events.Stdout(content=f"{number} "))
        await execution.emit(events.Result(success=True))

    return cell


async def test_a_lost_connection_costs_no_event_and_doubles_none(connected):
    """A stream goes on over cut connections without a gap or a duplicate."""
    connected.cells["c"] = counting(30, {3, 4, 20}, connected)
    async with kernelbroker.connect() as broker, broker.session() as session:
        got = [event async for event in session.stream("c")]
    assert [event.seq for event in got] == list(range(1, 33))
    assert len(connected.ops(Execute)) == 1
    assert connected.ops(Resume)
    assert {op.session_id for op in connected.ops(Open)} == {session.session_id}


async def test_live_events_that_overtake_the_replay_are_put_in_order(connected):
    """After a resume an event that came too early is dropped, and taken when it comes again."""
    cut = asyncio.Event()

    async def cell(execution):
        await execution.emit(events.Stdout(content="a"))
        cut.set()
        connected.drop()
        await connected.until(lambda: not execution.watchers)
        execution.journal.append(
            events.Stdout(content="b", seq=3, execution_id=execution.request.execution_id)
        )
        await connected.until(lambda: connected.connections)
        execution.watchers.update(connected.connections)
        await execution.emit(events.Stdout(content="c"))
        await connected.until(lambda: connected.ops(Resume))
        await execution.emit(events.Result(success=True))

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("c")).stdout == "abc"


async def test_an_execution_that_never_arrived_is_sent_again_once(connected):
    """Only where the broker says that it has no such execution is it sent a second time."""
    connected.lose = Execute
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("c")).success
    first, second = connected.ops(Execute)
    assert first.execution_id == second.execution_id
    assert len(connected.ops(Resume)) == 1


async def test_an_execution_is_not_sent_a_third_time(connected):
    """If it does not arrive the second time either, that is an error."""
    connected.lose = Execute
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Resume))
        connected.lose = Execute
        with pytest.raises(kernelbroker.NotFound):
            await running
    assert len(connected.ops(Execute)) == 2


async def test_an_execution_that_the_broker_forgot_is_not_sent_again(connected):
    """not_found for an execution whose events were seen is an error, never a second run."""

    async def cell(execution):
        session = next(iter(connected.sessions.values()))
        session.executions.clear()
        connected.drop()

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.NotFound):
            await session.run("c")
    assert len(connected.ops(Execute)) == 1


async def test_a_new_session_under_the_old_id_is_refused(connected):
    """A broker that lost the session gets no cell of the old one, and the new one is closed."""

    async def cell(execution):
        connected.sessions.clear()
        connected.drop()

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session("mine") as session:
        with pytest.raises(kernelbroker.SessionGone, match="its state is lost"):
            await session.run("c")
        await connected.until(lambda: connected.ops(Close))
    assert len(connected.ops(Execute)) == 1


async def test_a_session_that_ended_meanwhile_says_why(connected, scripts):
    """Reconnecting to a session that is gone raises SessionGone with the reason."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        connected.end(session.session_id, "out of its lifetime")
        connected.drop()
        with pytest.raises(kernelbroker.SessionGone, match="out of its lifetime"):
            await running


async def test_reconnecting_is_bounded(connected, scripts):
    """A broker that stays away ends the session with ConnectionLost."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        connected.is_up = False
        connected.drop()
        with pytest.raises(kernelbroker.ConnectionLost, match="could not be replaced"):
            await running
    assert connected.requests.count("/api/v1/ws") == 1 + len(dial.RETRY_DELAYS)


async def test_a_broker_that_ends_each_connection_is_given_up(connected, monkeypatch):
    """An event that is too large does not make the client reconnect for ever."""
    monkeypatch.setattr(dial, "MAX_MESSAGE", 10_000)

    async def cell(execution):
        await execution.emit(events.Stdout(content="x" * 20_000))

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.ConnectionLost, match="ends each connection"):
            await session.run("c")


async def test_an_idle_session_reconnects_when_it_is_used(connected):
    """A connection that is lost between two cells is replaced by the next one, not before."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        await session.run("a")
        connected.drop()
        await connected.until(lambda: not connected.connections)
        assert len(connected.ops(Open)) == 1
        await session.run("b")
        await session.interrupt()
    assert len(connected.ops(Open)) == 2
    assert len(connected.ops(Execute)) == 2


async def test_an_operation_whose_answer_is_lost_is_not_repeated(connected):
    """Interrupting twice could hit another cell: the caller is told instead."""
    connected.lose = Interrupt
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.ConnectionLost, match="not known"):
            await session.interrupt()
        assert (await session.run("c")).success
    assert len(connected.ops(Interrupt)) == 1


async def test_a_session_is_closed_even_without_its_connection(connected):
    """Where the WebSocket is lost the session is closed through REST."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        await session.run("a")
        connected.drop()
        await connected.until(lambda: not connected.connections)
        await turns_until(lambda: not session._channel.is_connected)
    assert connected.requests[-1] == f"/api/v1/sessions/{session.session_id}"


# Back-pressure.


async def test_a_slow_consumer_stops_the_broker(connected, monkeypatch):
    """While nobody takes events the client stops reading, and the broker cannot send on."""
    monkeypatch.setattr(inbox_module, "MAX_EVENTS", 10)
    sent = 0
    count = 2_000

    async def cell(execution):
        nonlocal sent
        for _ in range(count):
            await execution.emit(events.Stdout(content="x" * 20_000))
            sent += 1
        await execution.emit(events.Result(success=True))

    connected.cells["c"] = cell
    async with (
        kernelbroker.connect() as broker,
        broker.session() as session,
        aclosing(session.stream("c")) as stream,
    ):
        await anext(stream)
        before = -1
        while sent != before:
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert sent < count
        [inbox] = session._channel._inboxes.values()
        assert len(inbox.events) == 10
        # An answer comes through all the same, and the rest too.
        await session.interrupt()
        rest = [event async for event in stream]
    assert len(rest) == count + 1


async def test_waiting_for_the_second_stream_with_the_first_full_is_no_deadlock(
    connected, scripts, monkeypatch
):
    """A consumer may wait for one execution while it leaves another's events lying."""
    monkeypatch.setattr(inbox_module, "MAX_EVENTS", 10)
    connected.cells["a"] = scripts.printing(*["x" * 1000] * 1000)
    async with (
        kernelbroker.connect() as broker,
        broker.session() as session,
        aclosing(session.stream("a")) as a,
    ):
        await anext(a)
        assert (await session.run("b")).success
        assert len([event async for event in a]) == 1001


async def test_an_abandoned_stream_does_not_stop_the_others(connected, scripts, monkeypatch):
    """Events of a stream that was left while full are dropped, and the socket is read on."""
    monkeypatch.setattr(inbox_module, "MAX_EVENTS", 10)
    connected.cells["a"] = scripts.printing(*["x" * 1000] * 1000)
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with aclosing(session.stream("a")) as a:
            await anext(a)
            [inbox] = session._channel._inboxes.values()
            await turns_until(lambda: inbox.full)
        assert (await session.run("b")).success


async def test_closing_a_session_that_is_full_is_quick(connected, scripts, monkeypatch):
    """Unread output does not hold up the end of a session."""
    monkeypatch.setattr(inbox_module, "MAX_EVENTS", 10)
    connected.cells["a"] = scripts.printing(*["x" * 100_000] * 1000)
    async with kernelbroker.connect() as broker, broker.session() as session:
        stream = session.stream("a")
        await anext(stream)
        [inbox] = session._channel._inboxes.values()
        await turns_until(lambda: inbox.full)
        async with asyncio.timeout(dial.CLOSE_TIMEOUT / 2):
            await session.close()
        await stream.aclose()
    await connected.until(lambda: connected.ops(Close))


# Cancellation.


@pytest.fixture
def quick_collections():
    """What is there before the test is not looked through again with each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tasks_and_transports():
    gc.collect()
    return {task for task in asyncio.all_tasks() if "kernelbroker" in task.get_name()}


async def cancel_at(steps, work):
    """Run `work` for so many turns of the loop, then cancel it; True if it had ended before."""
    task = asyncio.create_task(work())
    for _ in range(steps):
        await asyncio.sleep(0)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    return False


@pytest.mark.parametrize("on_disconnect", ["continue", "interrupt"])
async def test_cancelling_at_every_await_leaves_nothing(
    connected, scripts, quick_collections, on_disconnect
):
    """Whenever connect, open, run and close are cancelled, no task, connection or session is left."""
    connected.cells["c"] = scripts.printing("a", "b")

    async def work():
        async with kernelbroker.connect() as broker, broker.session() as session:
            await session.run("c", on_disconnect=on_disconnect)

    steps = 0
    while not await cancel_at(steps, work):
        await connected.until(lambda: not connected.connections and not connected.sessions)
        assert not tasks_and_transports()
        steps += 1
    assert steps > 10
    assert connected.ops(Execute)


async def test_cancelling_a_stream_leaves_the_session_usable(connected, scripts):
    """A stream cancelled at any await leaves no inbox, and the next cell is unharmed."""
    connected.cells["c"] = scripts.printing("a", "b")
    async with kernelbroker.connect() as broker, broker.session() as session:

        async def work():
            async with aclosing(session.stream("c")) as stream:
                async for _ in stream:
                    await asyncio.sleep(0)

        steps = 0
        while not await cancel_at(steps, work):
            assert not session._channel._inboxes
            assert (await session.run("d")).stdout == ""
            steps += 1
        assert not session._channel._replies
    assert steps > 3


async def test_cancelling_while_reconnecting_leaves_nothing(connected, scripts):
    """A session that is closed while it connects again leaves no connection behind."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        connected.silent_on.add(Open)
        connected.drop()
        await connected.until(lambda: len(connected.ops(Open)) == 2)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await connected.until(lambda: not connected.connections)
    assert not tasks_and_transports()


# Failing to connect.


async def test_no_broker_says_where_it_was_looked_for_and_what_to_do():
    """ConnectionFailed names the address, where it was found, and the next step."""
    async with kernelbroker.connect("http://127.0.0.1:1") as broker:
        with pytest.raises(kernelbroker.ConnectionFailed) as info:
            await broker.run("1")
        assert str(info.value).startswith("no broker at http://127.0.0.1:1 (from the argument)")
        assert "make run" in str(info.value)
        with pytest.raises(kernelbroker.ConnectionFailed):
            await broker.health()


@pytest.mark.parametrize("call", ["run", "pool_status"])
async def test_a_wrong_token_says_where_it_came_from(broker, call):
    """Unauthorized names the token's source, never the token."""
    async with kernelbroker.connect(broker.url, "wrong-token") as client:
        with pytest.raises(kernelbroker.Unauthorized) as info:
            await (client.run("1") if call == "run" else client.pool_status())
    assert "came from the argument" in str(info.value)
    assert "wrong-token" not in str(info.value)
    assert info.value.request_id == "r1"


async def test_a_missing_token_says_how_to_give_one(broker):
    """Without any token the message tells of KERNELBROKER_TOKEN."""
    async with kernelbroker.connect(broker.url) as client:
        with pytest.raises(kernelbroker.Unauthorized, match="set KERNELBROKER_TOKEN"):
            await client.run("1")


async def test_http_calls_give_what_the_broker_answers(connected):
    """Health and pool status are the broker's JSON."""
    async with kernelbroker.connect() as broker:
        assert await broker.health() == {"status": "ok"}
        assert await broker.pool_status() == {"idle_containers": 3}
        connected.is_up = False
        with pytest.raises(kernelbroker.Unavailable):
            await broker.pool_status()
        with pytest.raises(kernelbroker.Unavailable):
            await broker.run("1")


async def test_a_server_that_is_no_broker_is_told(connected):
    """Another server's 404 is not taken for a broker's answer."""
    async with kernelbroker.connect(connected.url + "/elsewhere") as broker:
        with pytest.raises(kernelbroker.NotFound):
            await broker.run("1")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (ErrorReply(error=ErrorBody(code="unavailable", message="Full.")), "Unavailable"),
        (ErrorReply(error=ErrorBody(code="teapot", message="Short.")), "RequestError"),
        (Closed(reason="idle"), "SessionGone"),
        ("{}", "ProtocolError"),
        ("[", "ProtocolError"),
    ],
)
async def test_a_refused_session_raises_and_leaves_no_connection(connected, reply, error):
    """Whatever else than `opened` comes is an error of its own kind."""
    connected.answers.append(reply)
    async with kernelbroker.connect() as broker:
        with pytest.raises(getattr(kernelbroker, error)):
            await broker.session().open()
        await connected.until(lambda: not connected.connections)


async def test_a_broker_that_does_not_answer_gives_up_and_closes(connected, monkeypatch):
    """Opening a session ends after the timeout, and asks the broker to close it if it is there."""
    monkeypatch.setattr(dial, "GIVE_UP_TIMEOUT", 0.05)
    connected.silent_on.add(Open)
    async with kernelbroker.connect(timeout=0.05) as broker:
        with pytest.raises(kernelbroker.ConnectionFailed, match=r"opened no session in 0\.05 s"):
            await broker.session().open()
    await connected.until(lambda: connected.ops(Close) and not connected.connections)


@pytest.mark.parametrize("session_id", [None, "mine"])
async def test_an_opening_that_failed_can_be_tried_again(connected, monkeypatch, session_id):
    """What the broker opened too late has an id that is used up, but a name of the caller's stays."""
    monkeypatch.setattr(dial, "GIVE_UP_TIMEOUT", 0.05)
    connected.silent_on.add(Open)
    async with kernelbroker.connect(timeout=0.05) as broker:
        session = broker.session(session_id)
        files, before = session.files, session.session_id
        with pytest.raises(kernelbroker.ConnectionFailed):
            await session.open()
    connected.silent_on.clear()
    connected.gone[before] = "its client closed it"
    async with kernelbroker.connect() as broker:
        session._timeout = 30
        if session_id is not None:
            with pytest.raises(kernelbroker.SessionGone):
                await session.open()
            return
        async with session:
            assert (await session.run("c")).success
            with pytest.raises(kernelbroker.NotFound):
                await files.list()
            assert connected.requests[-1].startswith(f"/api/v1/sessions/{session.session_id}/files")
            assert session.session_id != before
