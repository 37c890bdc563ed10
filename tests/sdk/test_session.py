"""A session from opening to closing: streams, results, callbacks, operations and errors."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import kernelbroker
import pytest
from kernelbroker import events
from kernelbroker.protocol.messages import Close, ErrorBody, Execute, Interrupt, Open, Restart


async def test_stream_yields_typed_events_in_order(connected, scripts):
    """A stream yields `started`, each output in its order, and the result as the last event."""
    connected.cells["c"] = scripts.printing("0\n", "1\n")
    async with kernelbroker.connect() as broker, broker.session() as session:
        got = [event async for event in session.stream("c")]
    assert [type(event).__name__ for event in got] == ["Started", "Stdout", "Stdout", "Result"]
    assert [event.seq for event in got] == [1, 2, 3, 4]


async def test_events_are_yielded_while_the_cell_runs(connected):
    """An event is yielded before the cell produces the next one."""
    go_on = asyncio.Event()

    async def cell(cell):
        cell.stdout("first")
        await go_on.wait()

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        async for event in session.stream("c"):
            if isinstance(event, events.Stdout):
                go_on.set()
    assert isinstance(event, events.Result)


async def test_run_sends_its_options_and_nothing_else(connected):
    """`run` sends one request with its options."""
    async with kernelbroker.connect() as broker, broker.session(idle_timeout=600) as session:
        await session.run("c", result_var="df", preview_rows=5, timeout=30, env={"A": "b"})
    [request] = connected.ops(Execute)
    assert (request.result_var, request.preview_rows, request.timeout) == ("df", 5, 30)
    assert request.env == {"A": "b"}
    assert [type(op) for op in connected.received] == [Open, Execute, Close]
    assert connected.ops(Open)[0].idle_timeout == 600


async def test_callbacks_can_be_sync_or_async(connected, scripts):
    """Each kind of output goes to its callback, which may be a function or a coroutine function."""
    got = []

    async def on_stderr(text):
        await asyncio.sleep(0)
        got.append(("stderr", text))

    connected.cells["c"] = scripts.emitting(
        events.Stdout(content="out"),
        events.Stderr(content="err"),
        events.Image(mime="image/png", content="AAAA"),
        events.Display(data={"text/plain": "x"}),
    )
    async with kernelbroker.connect() as broker, broker.session() as session:
        await session.run(
            "c",
            on_stdout=lambda text: got.append(("stdout", text)),
            on_stderr=on_stderr,
            on_image=lambda image: got.append(("image", image.data)),
            on_display=lambda display: got.append(("display", display.text)),
        )
    assert got == [
        ("stdout", "out"),
        ("stderr", "err"),
        ("image", b"\0\0\0"),
        ("display", "x"),
    ]


async def test_an_exception_in_a_callback_ends_run(connected, scripts):
    """`run` raises the exception of a callback, and the session still works."""
    connected.cells["c"] = scripts.printing("x")

    def fail(text):
        raise ZeroDivisionError

    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(ZeroDivisionError):
            await session.run("c", on_stdout=fail)
        assert (await session.run("d")).success


async def test_on_input_answers_input(connected, scripts):
    """`on_input` gets the prompt, and the cell reads its return value."""
    connected.cells["c"] = scripts.asking
    async with kernelbroker.connect() as broker, broker.session() as session:
        result = await session.run("c", on_input=lambda prompt: f"{prompt}Ada")
        await session.run("c2")
    assert result.stdout == "name? Ada"
    assert [op.allow_stdin for op in connected.ops(Execute)] == [True, False]


async def test_streams_of_one_session_may_overlap(connected, scripts):
    """Two streams that are consumed at the same time each get all of their own events."""
    connected.cells.update(a=scripts.printing(*"aaa"), b=scripts.printing(*"bbb"))
    async with kernelbroker.connect() as broker, broker.session() as session:
        a, b = await asyncio.gather(session.run("a"), session.run("b"))
    assert (a.stdout, b.stdout) == ("aaa", "bbb")


async def test_leaving_a_stream_early_discards_the_rest(connected, scripts):
    """After a `break` the execution continues, its events are dropped, and the session works."""
    go_on = asyncio.Event()

    async def cell(cell):
        cell.stdout("first")
        await go_on.wait()
        cell.stdout("rest")

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with aclosing(session.stream("c")) as stream:
            async for event in stream:
                if isinstance(event, events.Stdout):
                    break
        assert not session._connection._queues
        go_on.set()
        assert (await session.run("d")).stdout == ""
    assert not connected.ops(Interrupt)


async def test_a_break_without_aclosing_closes_the_stream(connected, scripts):
    """Without `aclosing` the event loop closes the stream."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        async for _ in session.stream("c", on_disconnect="interrupt"):
            break
        await connected.until(lambda: connected.ops(Interrupt))
        assert not session._connection._queues


async def test_leaving_a_stream_can_interrupt_the_cell(connected, scripts):
    """With `on_disconnect="interrupt"` leaving the stream interrupts the cell."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with aclosing(session.stream("c", on_disconnect="interrupt")) as stream:
            async for _ in stream:
                break
        await connected.until(lambda: connected.ops(Interrupt))
        assert (await session.run("d")).success


async def test_leaving_a_waiting_execution_interrupts_no_other(connected, scripts):
    """The interrupt names its execution, so it does not affect the running one."""
    connected.cells.update(first=scripts.forever, second=scripts.forever)
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with aclosing(session.stream("first")) as first:
            await anext(first)
            second = asyncio.create_task(session.run("second", on_disconnect="interrupt"))
            await connected.until(lambda: len(connected.ops(Execute)) == 2)
            second.cancel()
            await asyncio.wait([second])
            await connected.until(lambda: connected.ops(Interrupt))
            left = connected.ops(Execute)[1].execution_id
            assert [op.execution_id for op in connected.ops(Interrupt)] == [left]
            await session.interrupt()
            assert [event async for event in first][-1].error_detail.cause == "interrupted"
        assert (await session.run("third")).success


async def test_interrupt_and_restart_wait_for_their_answers(connected, scripts):
    """Operations return when the broker has completed them."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        await session.interrupt()
        result = await running
        await session.restart()
    assert result.error_detail.cause == "interrupted"
    assert len(connected.ops(Restart)) == 1


async def test_a_cell_without_a_session_has_its_own_sandbox(connected, scripts):
    """`broker.run` and `broker.stream` open a session for one cell and close it afterwards."""
    connected.cells["c"] = scripts.printing("x")
    async with kernelbroker.connect() as broker:
        assert (await broker.run("c")).stdout == "x"
        assert [type(e) async for e in broker.stream("c")][-1] is events.Result
    await connected.until(lambda: len(connected.ops(Close)) == 2)
    assert await connected.no_sessions()


async def test_a_kept_session_can_be_opened_again(connected):
    """With `keep` the session stays open when the block ends."""
    async with kernelbroker.connect() as broker:
        async with broker.session("mine", keep=True) as session:
            await session.run("a")
        assert "mine" in await connected.sessions()
        async with broker.session("mine", keep=False) as session:
            assert session.info.session_id == "mine"
    await connected.until(connected.no_sessions)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(("keep", "stays"), [(None, True), (True, True), (False, False)])
async def test_joining_a_session_does_not_close_it(connected, keep, stays, lost):
    """Who has opened a session closes it, also after a lost connection; another client only if asked."""
    async with kernelbroker.connect() as first, kernelbroker.connect() as second:
        async with first.session("shared") as session:
            async with second.session("shared", keep=keep) as joined:
                assert (await joined.run("a")).success
                if lost:
                    connected.drop()
                    assert (await joined.run("a")).success
            assert (await connected.sessions() == ["shared"]) is stays
            if stays:
                assert (await session.run("a")).success
        assert await connected.no_sessions()


async def test_joining_a_context_does_not_close_it(connected):
    """A context stays for the client that has opened it."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with await session.context("notes") as context:
            async with await session.context("notes") as joined:
                assert (await joined.run("a")).success
            assert (await context.run("a")).success
        assert not await session.contexts()


async def test_closing_the_broker_closes_its_sessions(connected):
    """A session without `async with` closes with its broker, and refuses later calls."""
    async with kernelbroker.connect() as broker:
        session = await broker.session().open()
    assert await connected.no_sessions()
    with pytest.raises(kernelbroker.SessionGone, match="this client closed"):
        await session.run("a")


async def test_a_closed_session_ends_its_calls(connected, scripts):
    """The running cell gets a result; later calls raise SessionGone with the reason."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        await connected.end(session.session_id)
        assert not (await running).success
        with pytest.raises(kernelbroker.SessionGone, match="its client closed it"):
            await session.interrupt()
        with pytest.raises(kernelbroker.SessionGone, match="its client closed it"):
            await session.run("d")


async def test_an_execution_that_is_refused_raises(connected):
    """A refusal raises its exception, with the request id and `retry_after`."""
    connected.refuse[Execute] = ErrorBody(
        code="too_many_requests", message="Queue full.", request_id="r7", retry_after=2.5
    )
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.TooManyRequests, match="Queue full") as info:
            await session.run("c")
    assert (info.value.request_id, info.value.retry_after) == ("r7", 2.5)


async def test_an_operation_that_is_refused_raises(connected):
    """A refused operation raises an exception, and the session continues."""
    connected.refuse[Interrupt] = ErrorBody(code="conflict", message="Nothing runs.")
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.Conflict):
            await session.interrupt()
        assert (await session.run("c")).success


async def test_an_invalid_option_is_refused_by_the_client(connected):
    """A value out of bounds raises BadRequest without a request, by the broker's rules."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.BadRequest, match="timeout"):
            await session.run("c", timeout=-1)
        with pytest.raises(TypeError, match="result_vra"):
            await session.run("c", result_vra="df")
    assert not connected.ops(Execute)


async def test_unknown_events_and_fields_are_ignored(connected, scripts):
    """Events and fields of a newer broker are ignored."""

    def newer(payload):
        hologram = {"type": "hologram", "execution_id": "x", "seq": 99}
        event = json.loads(payload) | {"colour": 1}
        return [json.dumps(message).encode() for message in (hologram, event)]

    connected.rewrite = newer
    connected.cells["c"] = scripts.printing("x")
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("c")).stdout == "x"


async def test_an_invalid_message_ends_the_session(connected):
    """An invalid message has another error than a lost connection."""

    async with kernelbroker.connect() as broker, broker.session() as session:
        connected.rewrite = lambda payload: [b"{"]
        with pytest.raises(kernelbroker.ProtocolError):
            await session.run("c")


async def test_lone_surrogates_arrive(connected, scripts):
    """Text with lone surrogates is unchanged in both directions."""
    connected.cells["\ud800"] = scripts.printing("a\udcffb")
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("\ud800")).stdout == "a\udcffb"


async def test_large_events_arrive(connected, scripts):
    """Output of several megabytes arrives completely."""
    text = "x" * 4 * 2**20
    connected.cells["c"] = scripts.printing(text)
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("c")).stdout == text


async def test_an_unanswered_operation_times_out(connected):
    """The error of a timeout says that the outcome is unknown."""
    connected.silent_on.add(Interrupt)
    async with kernelbroker.connect(timeout=0.5) as broker, broker.session() as session:
        with pytest.raises(kernelbroker.ConnectionLost, match="did not answer"):
            await session.interrupt()
