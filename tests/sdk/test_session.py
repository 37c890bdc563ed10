"""A session from opening to closing: streams, results, callbacks, operations, errors."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import kernelbroker
import pytest
from kernelbroker import events
from kernelbroker.protocol.messages import Close, ErrorBody, Execute, Interrupt, Open, Restart


async def test_stream_yields_typed_events_in_order(connected, scripts):
    """A stream yields `started`, each output as it was sent, and the result as the last event."""
    connected.cells["c"] = scripts.printing("0\n", "1\n")
    async with kernelbroker.connect() as broker, broker.session() as session:
        got = [event async for event in session.stream("c")]
    assert [type(event).__name__ for event in got] == ["Started", "Stdout", "Stdout", "Result"]
    assert [event.seq for event in got] == [1, 2, 3, 4]


async def test_an_event_is_yielded_before_the_next_one_exists(connected):
    """Output is seen while the cell is still running."""
    go_on = asyncio.Event()

    async def cell(execution):
        await execution.emit(events.Stdout(content="first"))
        await go_on.wait()
        await execution.emit(events.Result(success=True))

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        async for event in session.stream("c"):
            if isinstance(event, events.Stdout):
                go_on.set()
    assert isinstance(event, events.Result)


async def test_run_sends_its_options_and_nothing_else(connected):
    """What `run` is told stands in the one request that it sends."""
    async with kernelbroker.connect() as broker, broker.session(idle_timeout=600) as session:
        await session.run("c", result_var="df", preview_rows=5, timeout=30, env={"A": "b"})
    [request] = connected.ops(Execute)
    assert (request.result_var, request.preview_rows, request.timeout) == ("df", 5, 30)
    assert request.env == {"A": "b"}
    assert [type(op) for op in connected.received] == [Open, Execute, Close]
    assert connected.ops(Open)[0].idle_timeout == 600


async def test_callbacks_get_output_as_it_comes_sync_or_async(connected, scripts):
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
    """What a callback raises comes out of `run`, and the session can be used again."""
    connected.cells["c"] = scripts.printing("x")

    def fail(text):
        raise ZeroDivisionError

    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(ZeroDivisionError):
            await session.run("c", on_stdout=fail)
        assert (await session.run("d")).success


async def test_input_is_answered_by_its_callback(connected):
    """`on_input` gets the prompt, and what it returns is what the cell reads."""

    async def cell(execution):
        await execution.emit(events.Input(prompt="name? "))
        await execution.emit(events.Stdout(content=await execution.answers.get()))
        await execution.emit(events.Result(success=True))

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        result = await session.run("c", on_input=lambda prompt: f"{prompt}Ada")
        await session.run("c2")
    assert result.stdout == "name? Ada"
    assert [op.allow_stdin for op in connected.ops(Execute)] == [True, False]


async def test_streams_of_one_session_may_overlap(connected, scripts):
    """Two streams consumed at once each get their own events, and all of them."""
    connected.cells.update(a=scripts.printing(*"aaa"), b=scripts.printing(*"bbb"))
    async with kernelbroker.connect() as broker, broker.session() as session:
        a, b = await asyncio.gather(session.run("a"), session.run("b"))
    assert (a.stdout, b.stdout) == ("aaa", "bbb")


async def test_leaving_a_stream_early_discards_the_rest(connected, scripts):
    """After a `break` the execution runs on, what it still yields is dropped, the session works."""
    go_on = asyncio.Event()

    async def cell(execution):
        await execution.emit(events.Stdout(content="first"))
        await go_on.wait()
        await scripts.printing("rest")(execution)

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with aclosing(session.stream("c")) as stream:
            async for event in stream:
                if isinstance(event, events.Stdout):
                    break
        assert not session._channel._inboxes
        go_on.set()
        assert (await session.run("d")).stdout == ""
    assert not connected.ops(Interrupt)


async def test_a_plain_break_leaves_a_stream_too(connected, scripts):
    """Without `aclosing` the event loop closes the stream as soon as it is let go."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        async for _ in session.stream("c", on_disconnect="interrupt"):
            break
        await connected.until(lambda: connected.ops(Interrupt))
        assert not session._channel._inboxes


async def test_leaving_early_interrupts_if_asked_to(connected, scripts):
    """With `on_disconnect="interrupt"` leaving the stream interrupts the cell."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        async with aclosing(session.stream("c", on_disconnect="interrupt")) as stream:
            async for _ in stream:
                break
        await connected.until(lambda: connected.ops(Interrupt))
        assert (await session.run("d")).success


async def test_leaving_a_waiting_execution_interrupts_no_other(connected, scripts):
    """The interrupt names the execution that was left, so the one that runs is not hit."""
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
            assert [type(event) async for event in first] == [events.Result]
        assert (await session.run("third")).success


async def test_interrupt_and_restart_wait_for_their_answers(connected, scripts):
    """Operations return when the broker says that they are done."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        await session.interrupt()
        result = await running
        await session.restart()
    assert result.error_detail.cause == "interrupted"
    assert len(connected.ops(Restart)) == 1


async def test_a_cell_in_a_sandbox_of_its_own(connected, scripts):
    """`broker.run` and `broker.stream` open a session for one cell and close it after."""
    connected.cells["c"] = scripts.printing("x")
    async with kernelbroker.connect() as broker:
        assert (await broker.run("c")).stdout == "x"
        assert [type(e) async for e in broker.stream("c")][-1] is events.Result
    await connected.until(lambda: len(connected.ops(Close)) == 2)
    assert not connected.sessions


async def test_a_kept_session_is_there_again_under_its_id(connected):
    """With `keep` leaving drops the connection only."""
    async with kernelbroker.connect() as broker:
        async with broker.session("mine", keep=True) as session:
            await session.run("a")
        assert "mine" in connected.sessions
        async with broker.session("mine") as session:
            assert session.info.session_id == "mine"
        await connected.until(lambda: not connected.sessions)


async def test_closing_the_broker_closes_its_sessions(connected):
    """A session opened without `async with` ends with its broker, and refuses to be used."""
    async with kernelbroker.connect() as broker:
        session = await broker.session().open()
    assert not connected.sessions
    with pytest.raises(kernelbroker.SessionGone, match="this client closed"):
        await session.run("a")


async def test_a_session_that_ends_by_itself_fails_what_waits(connected, scripts):
    """`closed` ends running streams and everything after with SessionGone and the reason."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        await connected.close_session(session.session_id, "idle for 1800 s")
        with pytest.raises(kernelbroker.SessionGone, match="idle for 1800 s"):
            await running
        with pytest.raises(kernelbroker.SessionGone):
            await session.interrupt()


async def test_an_execution_that_is_refused_raises(connected):
    """A refusal becomes its exception, with the request id and when to try again."""
    connected.refuse[Execute] = ErrorBody(
        code="too_many_requests", message="Queue full.", request_id="r7", retry_after=2.5
    )
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.TooManyRequests, match="Queue full") as info:
            await session.run("c")
    assert (info.value.request_id, info.value.retry_after) == ("r7", 2.5)


async def test_an_operation_that_is_refused_raises(connected):
    """A refused operation raises, and the session goes on."""
    connected.refuse[Interrupt] = ErrorBody(code="conflict", message="Nothing runs.")
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.Conflict):
            await session.interrupt()
        assert (await session.run("c")).success


async def test_a_bad_option_is_refused_before_it_is_sent(connected):
    """A value out of bounds raises BadRequest here, by the broker's own rules."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.BadRequest, match="timeout"):
            await session.run("c", timeout=-1)
        with pytest.raises(TypeError, match="result_vra"):
            await session.run("c", result_vra="df")
    assert not connected.ops(Execute)


async def test_unknown_events_and_fields_are_ignored(connected):
    """What a newer broker adds does no harm."""

    async def cell(execution):
        for watcher in execution.watchers:
            await watcher.send('{"type": "hologram", "execution_id": "x", "seq": 99}')
            newer = {"type": "stdout", "content": "x", "colour": 1, "seq": 2}
            newer["execution_id"] = execution.request.execution_id
            await watcher.send(json.dumps(newer))
        execution.journal.append(None)
        await execution.emit(events.Result(success=True))

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("c")).stdout == "x"


async def test_what_is_no_message_ends_the_session(connected):
    """A broker that breaks the protocol is told apart from one that is gone."""

    async def cell(execution):
        for watcher in execution.watchers:
            await watcher.send("{")

    connected.cells["c"] = cell
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(kernelbroker.ProtocolError):
            await session.run("c")


async def test_lone_surrogates_arrive(connected, scripts):
    """Text that UTF-8 cannot carry goes both ways unharmed."""
    connected.cells["\ud800"] = scripts.printing("a\udcffb")
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("\ud800")).stdout == "a\udcffb"


async def test_large_events_arrive(connected, scripts):
    """An event of 16 MiB is no problem."""
    text = "x" * 2**24
    connected.cells["c"] = scripts.printing(text)
    async with kernelbroker.connect() as broker, broker.session() as session:
        assert (await session.run("c")).stdout == text


async def test_an_unanswered_operation_gives_up(connected):
    """An operation without an answer ends after the timeout, with what is not known."""
    connected.silent_on.add(Restart)
    async with kernelbroker.connect(timeout=0.05) as broker, broker.session() as session:
        with pytest.raises(kernelbroker.ConnectionLost, match="did not answer"):
            await session.restart()
