"""Lost connections, back-pressure and cancellation: no event is lost or repeated."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import kernelbroker
import pytest
from kernelbroker import event_queue, events, websocket
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

from tests.support.waiting import cancelled_anywhere


async def turns_until(predicate):
    """Let the event loop run until the sockets have delivered what was sent."""
    async with asyncio.timeout(5):
        while not predicate():  # noqa: ASYNC110 - nothing tells of it; this is no waiting for time
            await asyncio.sleep(0)


def counting(count, lose_at, broker):
    """A cell that prints numbers, during which the connection breaks."""

    async def script(cell):
        for number in range(count):
            if number in lose_at:
                await broker.until(lambda: broker.links)
                dropped = set(broker.links)
                broker.drop()
                await broker.until(lambda: not dropped & broker.links)  # noqa: B023 - called here
            cell.stdout(f"{number} ")

    return script


async def test_a_lost_connection_loses_and_repeats_no_event(connected):
    """A stream continues after lost connections without a gap or a duplicate."""
    connected.cells["c"] = counting(30, {3, 4, 20}, connected)
    async with kernelbroker.connect() as broker, broker.session() as session:
        got = [event async for event in session.stream("c")]
    assert [event.seq for event in got] == list(range(1, len(got) + 1))
    printed = "".join(event.content for event in got if isinstance(event, events.Stdout))
    assert printed.split() == [str(number) for number in range(30)]
    assert len(connected.ops(Execute)) == 1
    assert connected.ops(Resume)
    assert {op.session_id for op in connected.ops(Open)} == {session.session_id}


def test_live_events_before_the_replay_are_put_in_order():
    """After a resume an event that arrives too early is dropped; its repetition is used."""
    queue = event_queue.EventQueue(Execute(code="c"), "e")
    queue.put(events.Stdout(content="a", seq=1), 1)
    queue.resuming = True
    for seq, text in ((3, "c"), (2, "b"), (3, "c"), (2, "b"), (4, "d")):
        queue.put(events.Stdout(content=text, seq=seq), 1)
    assert "".join(event.content for event, _ in queue.events) == "abcd"
    assert queue.failure is None
    queue.put(events.Stdout(content="f", seq=6), 1)
    assert isinstance(queue.failure, kernelbroker.ProtocolError)


async def test_an_execution_that_never_arrived_is_sent_again_once(connected):
    """An execution is sent again only if the broker does not know it."""
    connected.lose = Execute
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("c")).success
    first, second = connected.ops(Execute)
    assert first.execution_id == second.execution_id
    assert len(connected.ops(Resume)) == 1


async def test_an_execution_is_not_sent_a_third_time(connected):
    """If the second attempt does not arrive either, an error is raised."""
    connected.lose = Execute
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Resume))
        connected.lose = Execute
        with pytest.raises(kernelbroker.NotFound):
            await running
    assert len(connected.ops(Execute)) == 2


async def test_an_execution_that_the_broker_forgot_is_not_sent_again(connected, scripts):
    """If events of an execution have arrived, not_found is an error, and the cell does not run again."""
    connected.cells["c"] = scripts.forever
    async with (
        kernelbroker.connect() as broker,
        broker.session() as session,
        aclosing(session.stream("c")) as stream,
    ):
        await anext(stream)
        connected.refuse[Resume] = ErrorBody(code="not_found", message="No such execution.")
        connected.drop()
        with pytest.raises(kernelbroker.NotFound):
            await anext(stream)
    assert len(connected.ops(Execute)) == 1


async def test_a_lost_session_is_not_replaced(connected, scripts, second_broker):
    """If the broker lost the session, its client learns so; no new session takes its id or its cells."""
    connected.cells["c"] = scripts.forever
    async with (
        second_broker() as other,
        kernelbroker.connect() as broker,
        broker.session("mine", keep=True) as session,
        aclosing(session.stream("c")) as stream,
    ):
        await anext(stream)
        connected.broker_port = other.api.port
        connected.drop()
        with pytest.raises(kernelbroker.SessionGone, match="its state is lost"):
            await anext(stream)
        await connected.until(other.no_sessions)
    assert len(connected.ops(Execute)) == 1


async def test_a_new_session_under_the_old_id_is_another_one(connected, scripts):
    """A client that reconnects gets its own session or learns why it ended, also if another has its id."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session("mine") as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        connected.pause()
        connected.drop()
        await connected.end("mine")
        body = {"session_id": "mine"}
        assert (await connected.api.ask("POST", "/api/v1/sessions", body)).status == 201
        connected.unpause()
        with pytest.raises(kernelbroker.SessionGone, match="its state is lost"):
            await running
        assert await connected.sessions() == ["mine"]


async def test_reconnecting_to_a_closed_session_has_the_reason(connected, scripts):
    """Reconnecting to a closed session raises SessionGone with the reason."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        connected.pause()
        connected.drop()
        await connected.end(session.session_id)
        connected.unpause()
        with pytest.raises(kernelbroker.SessionGone, match="its client closed it"):
            await running


async def test_reconnecting_is_bounded(connected, scripts):
    """If the broker does not come back, the session ends with ConnectionLost."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        connected.is_up = False
        connected.drop()
        with pytest.raises(kernelbroker.ConnectionLost, match="could not be replaced"):
            await running
    assert connected.requests.count("/api/v1/ws") == 1 + len(websocket.RETRY_DELAYS)


async def test_a_broker_that_closes_each_connection(connected, scripts, monkeypatch):
    """If each connection ends at once, such as by too large an event, reconnecting ends."""
    monkeypatch.setattr(websocket, "MAX_MESSAGE", 10_000)
    connected.cells["c"] = scripts.printing("x" * 20_000)
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.ConnectionLost, match="ends each connection"):
            await session.run("c")


async def test_an_idle_session_reconnects_when_it_is_used(connected):
    """A connection that is lost between two cells is replaced when the next cell is sent."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        await session.run("a")
        connected.drop()
        await connected.until(lambda: not connected.links)
        assert len(connected.ops(Open)) == 1
        await session.run("b")
        await session.interrupt()
    assert len(connected.ops(Open)) == 2
    assert len(connected.ops(Execute)) == 2


async def test_an_operation_whose_answer_is_lost_is_not_repeated(connected):
    """An interrupt is not repeated, since it could reach another cell; the caller gets an error."""
    connected.lose = Interrupt
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.ConnectionLost, match="not known"):
            await session.interrupt()
        assert (await session.run("c")).success
    assert len(connected.ops(Interrupt)) == 1


async def test_a_session_is_closed_even_without_its_connection(connected):
    """If the WebSocket is lost, the session is closed with a REST call."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        await session.run("a")
        connected.drop()
        await connected.until(lambda: not connected.links)
        await turns_until(lambda: not session._connection.is_connected)
    assert connected.requests[-1] == f"/api/v1/sessions/{session.session_id}"


# Back-pressure.


async def test_unread_events_slow_the_broker(connected, scripts, monkeypatch):
    """If events are not consumed, the client stops reading, and the broker cannot send more."""
    monkeypatch.setattr(event_queue, "MAX_EVENTS", 10)
    count, size = 400, 20_000
    connected.cells["c"] = scripts.printing(*["x" * size] * count)
    async with (
        kernelbroker.connect() as broker,
        broker.session() as session,
        aclosing(session.stream("c")) as stream,
    ):
        await anext(stream)
        [queue] = session._connection._queues.values()
        await turns_until(lambda: queue.full)
        before = -1
        while connected.relayed != before:
            before = connected.relayed
            for _ in range(500):
                await asyncio.sleep(0)
        assert connected.relayed < count * size
        assert len(queue.events) == 10
        # An answer still arrives, and so does the rest.
        await session.interrupt()
        rest = [event async for event in stream]
    assert sum(len(event.content) for event in rest[:-1]) == count * size
    assert isinstance(rest[-1], events.Result)


async def test_a_full_stream_does_not_block_another_one(connected, scripts, monkeypatch):
    """A consumer can wait for one execution while the events of another one are not consumed."""
    monkeypatch.setattr(event_queue, "MAX_EVENTS", 10)
    connected.cells["a"] = scripts.printing(*["x" * 1000] * 1000)
    async with (
        kernelbroker.connect() as broker,
        broker.session() as session,
        aclosing(session.stream("a")) as a,
    ):
        await anext(a)
        assert (await session.run("b")).success
        assert len([event async for event in a]) == 1001


async def test_a_closed_stream_does_not_block_the_others(connected, scripts, monkeypatch):
    """Events of a full stream that was closed are dropped, and reading continues."""
    monkeypatch.setattr(event_queue, "MAX_EVENTS", 10)
    connected.cells["a"] = scripts.printing(*["x" * 1000] * 1000)
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with aclosing(session.stream("a")) as a:
            await anext(a)
            [queue] = session._connection._queues.values()
            await turns_until(lambda: queue.full)
        assert (await session.run("b")).success


async def test_unread_output_does_not_delay_closing(connected, scripts, monkeypatch):
    """Closing a session does not wait for unread output."""
    monkeypatch.setattr(event_queue, "MAX_EVENTS", 10)
    monkeypatch.setattr(websocket.disconnect, "__defaults__", (60.0,))  # it would give up after 2 s
    connected.cells["a"] = scripts.printing(*["x" * 10_000] * 1000)
    async with kernelbroker.connect() as broker, broker.session() as session:
        stream = session.stream("a")
        await anext(stream)
        [queue] = session._connection._queues.values()
        await turns_until(lambda: queue.full)
        async with asyncio.timeout(30):
            await session.close()
        await stream.aclose()
    await connected.until(lambda: connected.ops(Close))


# Cancellation.


@pytest.fixture
def quick_collections():
    """Exclude objects that exist before the test from garbage collection, to make it fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tasks_and_transports():
    gc.collect()
    return {task for task in asyncio.all_tasks() if "kernelbroker" in task.get_name()}


@pytest.mark.slow
@pytest.mark.parametrize("on_disconnect", ["continue", "interrupt"])
async def test_cancelling_at_every_await_leaves_nothing(
    connected, scripts, quick_collections, on_disconnect
):
    """If connect, open, run or close is cancelled, no task, connection or session is left."""
    connected.cells["c"] = scripts.printing("a", "b")

    async def work():
        async with kernelbroker.connect() as broker, broker.session() as session:
            await session.run("c", on_disconnect=on_disconnect)

    runs = 0
    async for task in cancelled_anywhere(work, growth=1.1):
        await connected.until(lambda: not connected.links)
        await connected.until(connected.no_sessions)
        assert not tasks_and_transports()
        runs += 1
        assert task.cancelled() or task.exception() is None
    assert runs > 20
    assert connected.ops(Execute)


async def test_cancelling_a_stream_leaves_the_session_usable(connected, scripts):
    """A stream that is cancelled at any await leaves no queue, and the next cell runs."""
    connected.cells["c"] = scripts.printing("a", "b")
    async with kernelbroker.connect() as broker, broker.session() as session:

        async def work():
            async with aclosing(session.stream("c")) as stream:
                async for _ in stream:
                    await asyncio.sleep(0)

        runs = 0
        async for task in cancelled_anywhere(work, growth=1.1):
            assert not session._connection._queues
            assert (await session.run("d")).stdout == ""
            runs += 1
            assert task.cancelled() or task.exception() is None
        assert not session._connection._replies
    assert runs > 10


async def test_cancelling_while_reconnecting_leaves_nothing(connected, scripts):
    """A session that is closed while it reconnects leaves no connection."""
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
    await connected.until(lambda: not connected.links)
    assert not tasks_and_transports()


# Failing to connect.


async def test_connection_failed_has_the_address_and_advice():
    """ConnectionFailed has the address, its source and advice."""
    async with kernelbroker.connect("http://127.0.0.1:1") as broker:
        with pytest.raises(kernelbroker.ConnectionFailed) as info:
            await broker.run("1")
        assert str(info.value).startswith("no broker at http://127.0.0.1:1 (from the argument)")
        assert "make run" in str(info.value)
        with pytest.raises(kernelbroker.ConnectionFailed):
            await broker.health()


@pytest.mark.parametrize("call", ["run", "pool_status"])
async def test_unauthorized_has_the_source_of_the_token(broker, call):
    """Unauthorized has the source of the token, but not the token."""
    async with kernelbroker.connect(broker.url, "wrong-token") as client:
        with pytest.raises(kernelbroker.Unauthorized) as info:
            await (client.run("1") if call == "run" else client.pool_status())
    assert "came from the argument" in str(info.value)
    assert "wrong-token" not in str(info.value)
    assert info.value.request_id


async def test_a_missing_token_gives_advice(broker):
    """Without a token the message names KERNELBROKER_TOKEN."""
    async with kernelbroker.connect(broker.url) as client:
        with pytest.raises(kernelbroker.Unauthorized, match="set KERNELBROKER_TOKEN"):
            await client.run("1")


async def test_health_and_pool_status_are_the_brokers_json(connected):
    """Health and pool status are the broker's JSON."""
    async with kernelbroker.connect() as broker:
        assert (await broker.health())["status"] == "ok"
        assert (await broker.pool_status())["total_containers"] >= 1
        connected.is_up = False
        with pytest.raises(kernelbroker.Unavailable):
            await broker.pool_status()
        with pytest.raises(kernelbroker.Unavailable):
            await broker.run("1")


async def test_another_server_is_reported(connected):
    """A 404 of another server is not taken for an answer of a broker."""
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
    """Each answer but `opened` raises the appropriate error."""
    connected.answers.append(reply)
    async with kernelbroker.connect() as broker:
        with pytest.raises(getattr(kernelbroker, error)):
            await broker.session().open()
        await connected.until(lambda: not connected.links)


async def test_opening_times_out_and_closes_the_session(connected, monkeypatch):
    """Opening a session ends after the timeout, and asks the broker to close the session."""
    monkeypatch.setattr(websocket, "GIVE_UP_TIMEOUT", 0.05)
    connected.silent_on.add(Open)
    async with kernelbroker.connect(open_timeout=0.05) as broker:
        with pytest.raises(kernelbroker.ConnectionFailed, match=r"opened no session in 0\.05 s"):
            await broker.session().open()
    await connected.until(lambda: connected.ops(Close) and not connected.links)


@pytest.mark.parametrize("session_id", [None, "mine"])
async def test_an_opening_that_failed_can_be_tried_again(connected, monkeypatch, session_id):
    """A retry gets a new id, unless the caller chose the id."""
    monkeypatch.setattr(websocket, "GIVE_UP_TIMEOUT", 0.05)
    connected.silent_on.add(Open)
    async with kernelbroker.connect(open_timeout=0.05) as broker:
        session = broker.session(session_id)
        files, before = session.files, session.session_id
        with pytest.raises(kernelbroker.ConnectionFailed):
            await session.open()
    connected.silent_on.clear()
    await connected.api.world.open(before)
    await connected.end(before)
    async with kernelbroker.connect() as broker:
        session._timeouts = broker._timeouts
        async with session:
            assert (await session.run("c")).success
            assert await files.list() == []
            assert connected.requests[-1].startswith(f"/api/v1/sessions/{session.session_id}/files")
            assert (session.session_id == before) is (session_id is not None)
