"""The WebSocket: one connection, one session; operations in, events out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from kernelbroker.protocol.events import Input, Result, Started, Stdout
from kernelbroker.protocol.messages import Closed, Done, ErrorReply, Opened
from kernelbroker_server.api import routes
from kernelbroker_server.sessions import memory_store
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.http import Api, serving
from tests.support.results import cause_of
from tests.support.waiting import DEADLINE_S, turns, until
from tests.support.world import (
    Breakpoint,
    deaf,
    interruptible,
    result_of,
    submit,
    watchers_of,
    world,
)


async def test_open_and_execute_sends_events_in_order(api: Api) -> None:
    """A session is opened and runs a cell, and its events come in order."""

    async def hello(cell: Cell) -> None:
        cell.stdout("hello \ud800")

    api.world.backend.scripts["hello"] = hello
    async with api.socket() as socket:
        opened = await socket.open(session_id="mine", metadata={"a": 1})
        assert opened.session.session_id == "mine"
        assert (opened.session.state, opened.session.isolation) == ("idle", "process")
        await socket.send("execute", code="hello", execution_id="e")
        events = await socket.events("e")
        assert [type(event) for event in events] == [Started, Stdout, Result]
        assert [event.seq for event in events] == [1, 2, 3]
        assert isinstance(events[1], Stdout)
        assert events[1].content == "hello \ud800"


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_connection_without_a_token_gets_401(api: Api, token: str | None) -> None:
    """A handshake without a token is answered with 401 as JSON."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"ws://127.0.0.1:{api.port}/api/v1/ws"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, additional_headers=headers, proxy=None):
            pass
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error"]["code"] == "unauthorized"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"op": "execute", "code": "1", "op_id": "7"}, "open"),
        ({"op": "open", "template": "gpu"}, "gpu"),
        ({"op": "open", "colour": "red"}, "colour"),
    ],
)
async def test_operations_before_open_are_refused(
    api: Api, sent: dict[str, Any], message: str
) -> None:
    """Operations before a valid `open` are refused with advice, and can be tried again."""
    async with api.socket() as socket:
        await socket.send(**sent)
        reply = await socket.get()
        assert isinstance(reply, ErrorReply)
        assert message in reply.error.message
        assert reply.op == sent["op"]
        assert reply.op_id == sent.get("op_id")
        assert reply.error.request_id
        await socket.open()


@pytest.mark.parametrize(
    "message", ["", "{", "[]", "null", b"\xff\x00", "[" * 100_000, '{"op":"dance"}', '{"op":3}']
)
async def test_malformed_operations_keep_the_connection(api: Api, message: str | bytes) -> None:
    """Malformed operations are refused, and the connection stays open."""
    async with api.socket() as socket:
        for _ in range(2):
            await socket.connection.send(message)
            reply = await socket.get()
            assert isinstance(reply, ErrorReply)
            assert reply.error.code == "bad_request"
            if api.world.registry.list() == []:
                await socket.open()
        await socket.send("execute", code="1", execution_id="e")
        assert (await socket.events("e"))[-1]


async def test_a_refused_execution_is_named(api: Api) -> None:
    """The error of a refused execution names it."""
    async with api.socket() as socket:
        await socket.open()
        await socket.send("execute", code="1", execution_id="e", timeout=1e9, op_id="o")
        reply = await socket.get()
        assert isinstance(reply, ErrorReply)
        assert (reply.op, reply.op_id, reply.execution_id) == ("execute", "o", "e")
        await socket.send("open")
        assert (await socket.get()).error.code == "conflict"
        await socket.send("resume", execution_id="unknown")
        assert (await socket.get()).error.code == "not_found"


async def test_an_interrupt_is_read_while_a_cell_runs(api: Api) -> None:
    """An interrupt is read and performed while a cell runs."""
    api.world.backend.scripts["wait"] = interruptible
    async with api.socket() as socket:
        await socket.open()
        await socket.send("execute", code="wait", execution_id="e")
        await socket.until(Stdout)
        await socket.send("interrupt", op_id="i")
        done = await socket.until(Done)
        assert (done.op, done.op_id) == ("interrupt", "i")
        result = await socket.until(Result)
        assert result.error_detail.cause == "interrupted"


async def test_input_is_asked_and_answered(api: Api) -> None:
    """A cell's `input()` comes as an event, and the answer reaches the cell."""

    async def ask(cell: Cell) -> None:
        cell.send("stdin", "input_request", {"prompt": "name? ", "password": True})
        cell.stdout(await cell.answers.get())

    api.world.backend.scripts["ask"] = ask
    async with api.socket() as socket:
        await socket.open()
        await socket.send("execute", code="ask", execution_id="e", allow_stdin=True)
        question = await socket.until(Input)
        assert (question.prompt, question.password) == ("name? ", True)
        await socket.send("stdin", execution_id="e", value="Ada")
        assert (await socket.until(Stdout)).content == "Ada"
        assert (await socket.until(Result)).success


async def test_many_cells_run_in_order(api: Api) -> None:
    """Cells that are sent without waiting run in order, and their events do not mix."""
    async with api.socket() as socket:
        await socket.open()
        names = [f"e{number}" for number in range(40)]
        for name in names:
            await socket.send("execute", code=name, execution_id=name)
        for name in names:
            assert len(await socket.events(name)) == 2
        assert [cell.code for cell in api.world.backend.cells] == names


async def test_resume_sends_the_events_after_a_seq(api: Api) -> None:
    """After a lost connection a client gets all events after the last seq that it saw."""
    hold = Breakpoint()

    async def talk(cell: Cell) -> None:
        cell.stdout("one")
        await hold(cell)
        cell.stdout("two")

    api.world.backend.scripts["talk"] = talk
    async with api.socket() as first:
        await first.open(session_id="mine")
        await first.send("execute", code="talk", execution_id="e")
        seen = await first.until(Stdout)
        first.connection.transport.abort()
    async with api.socket() as second:
        await second.open(session_id="mine")
        await second.send("resume", execution_id="e", after=seen.seq)
        await turns(5)
        hold.go_on.set()
        events = await second.events("e")
        assert [event.seq for event in events] == [3, 4]
        await second.send("resume", execution_id="e")
        assert [event.seq for event in await second.events("e")] == [1, 2, 3, 4]
        await second.send("resume", execution_id="e", after=10**15)
        await second.send("interrupt")
        assert isinstance(await second.get(), Done)


async def test_a_second_connection_watches_the_session(api: Api) -> None:
    """A second connection to the session gets the events of the first one's cells."""
    async with api.socket() as first, api.socket() as second:
        await first.open(session_id="mine")
        await second.open(session_id="mine")
        await first.send("execute", code="1", execution_id="a")
        assert await first.events("a") == await second.events("a")
        submit(api.world.registry.get("mine"), "2", execution_id="b")
        assert await first.events("b") == await second.events("b")


async def test_restart_and_close_are_answered(api: Api) -> None:
    """A restart and a close are answered; the close ends every connection with the reason."""
    api.world.backend.scripts["deaf"] = deaf
    async with api.socket() as first, api.socket() as second:
        await first.open(session_id="mine")
        await second.open(session_id="mine")
        await first.send("execute", code="deaf", execution_id="e")
        await first.until(Stdout)
        await first.send("restart", op_id="r")
        assert (await first.until(Result)).kernel_restarted
        assert (await first.until(Done)).op_id == "r"
        await first.send("close", op_id="c")
        assert (await first.until(Done)).op_id == "c"
        for socket in (first, second):
            assert (await socket.until(Closed)).reason == "its client closed it"
            assert (await socket.closed())[0] == 1000


async def test_the_end_of_a_session_is_announced_last(api: Api) -> None:
    """At the end of a session come the running cell's result, the reason, and the close frame."""
    api.world.backend.scripts["deaf"] = deaf
    async with api.socket() as socket:
        await socket.open(session_id="mine")
        await socket.send("execute", code="deaf", execution_id="e")
        await socket.until(Stdout)
        await socket.send("execute", code="later", execution_id="f")
        await until(lambda: api.world.registry.get("mine").queued == 1)
        await api.world.registry.get("mine").close("enough")
        for name in "ef":
            result = await socket.until(Result)
            assert (result.execution_id, result.error) == (name, "SessionClosed: enough")
        assert (await socket.get()) == Closed(reason="enough")
        assert (await socket.closed())[0] == 1000


async def test_a_known_session_that_has_ended_is_not_replaced(api: Api) -> None:
    """With `created_at` only the session of then is opened; the error has the reason why it ended."""
    async with api.socket() as socket:
        known = (await socket.open(session_id="mine")).session.created_at.isoformat()
    async with api.socket() as socket:
        await socket.send("open", session_id="mine", created_at=known)
        assert isinstance(await socket.get(), Opened)
    await api.world.registry.get("mine").close("enough")
    async with api.socket() as socket:
        await socket.send("open", session_id="mine", created_at=known)
        reply = await socket.get()
        assert (reply.error.code, "enough" in reply.error.message) == ("session_gone", True)
    assert api.world.registry.list() == []
    async with api.socket() as socket:
        assert (await socket.open(session_id="mine")).session.created_at.isoformat() != known
    async with api.socket() as socket:
        await socket.send("open", session_id="mine", created_at=known)
        reply = await socket.get()
        assert (reply.error.code, "state is lost" in reply.error.message) == ("session_gone", True)


async def test_shutdown_sends_results_and_the_reason(backend: FakeBackend) -> None:
    """At shutdown a client gets its result, the reason, and close code 1001."""
    backend.scripts["deaf"] = deaf
    async with world(backend) as w, serving(w) as api, api.socket() as busy, api.socket() as idle:
        await busy.open()
        await busy.send("execute", code="deaf", execution_id="e")
        await busy.until(Stdout)
        await w.tenants.stop("closing time")
        assert (await busy.until(Result)).error == "SessionClosed: closing time"
        assert (await busy.until(Closed)).reason == "closing time"
        assert (await busy.closed())[0] == 1001
        for websocket in list(api.service.websockets):
            websocket.close(1001, "closing time")
        assert (await idle.closed())[0] == 1001


# Clients that go away, or stay away.


@pytest.mark.parametrize("on_disconnect", ["continue", "interrupt"])
async def test_on_disconnect_applies_to_running_and_waiting_cells(
    api: Api, on_disconnect: str
) -> None:
    """After a disconnect, running and waiting cells continue or end, as requested."""
    api.world.backend.scripts["wait"] = interruptible
    async with api.socket() as socket:
        await socket.open(session_id="mine")
        for name in ("a", "b"):
            await socket.send(
                "execute", code="wait", execution_id=name, on_disconnect=on_disconnect
            )
        await socket.until(Stdout)
        session = api.world.registry.get("mine")
        await until(lambda: len(session.executions) == 2)
        socket.connection.transport.abort()
    await until(lambda: not api.service.websockets)
    executions = list(session.executions.values())
    if on_disconnect == "interrupt":
        for execution in executions:
            result = await result_of(execution)
            assert cause_of(result) == "interrupted"
        assert len(api.world.backend.cells) == 1
    else:
        assert [e.state for e in executions] == ["running", "queued"]
        await session.close("done")
    assert not watchers_of(session)


async def test_a_reader_that_falls_behind_is_disconnected(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that is too many executions behind is disconnected, with advice to resume."""
    monkeypatch.setattr(memory_store, "_WATCHER_LAG", 2)
    hold = Breakpoint()
    api.world.backend.scripts["hold"] = hold
    async with api.socket() as socket:
        await socket.open(session_id="mine")
        session = api.world.registry.get("mine")
        executions = [submit(session, "hold")]
        await hold.reached()
        executions += [submit(session) for _ in range(5)]
        hold.go_on.set()
        for execution in executions:
            assert (await result_of(execution)).success
        while True:
            try:
                await socket.get()
            except Exception:
                break
        assert (await socket.closed())[0] == 1008


@pytest.mark.slow
async def test_a_reader_that_stops_reading_is_disconnected(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that stops reading delays no other one, costs no buffer, and is disconnected."""
    monkeypatch.setattr(routes, "_PING_INTERVAL_S", 0.2)
    size = 8 * 1024**2

    async def talk(cell: Cell) -> None:
        for _ in range(size // 2**18):
            cell.stdout("x" * 2**18)

    backend.scripts["talk"] = talk
    async with world(backend) as w, serving(w) as api:
        async with api.socket(max_queue=1, ping_interval=None) as stuck:
            await stuck.open(session_id="mine")
            (handler,) = api.service.websockets
            assert handler.ws_connection is not None
            stream = handler.ws_connection.stream  # type: ignore[attr-defined]
            stuck.connection.transport.pause_reading()
            execution = submit(w.registry.get("mine"), "talk")
            result = await result_of(execution)
            assert result.success
            most = 0

            def cut_off() -> bool:
                nonlocal most
                most = max(most, len(stream._write_buffer or b""))
                return not api.service.websockets

            async with asyncio.timeout(DEADLINE_S):
                while not cut_off():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert most < 2 * 1024**2
            stuck.connection.transport.abort()
        async with api.socket(max_size=None) as again:
            await again.open(session_id="mine")
            await again.send("resume", execution_id=execution.id)
            events = await again.events(execution.id)
            assert sum(len(e.content) for e in events if isinstance(e, Stdout)) == size


async def test_too_many_operations_are_refused(api: Api) -> None:
    """A connection with too many concurrent operations gets an error."""
    hold = Breakpoint()
    api.world.backend.scripts["hold"] = hold
    async with api.socket() as socket:
        await socket.open(session_id="mine")
        await socket.send("execute", code="hold", execution_id="e")
        await hold.reached()
        for _ in range(300):
            await socket.send("resume", execution_id="e", after=1)
        reply = await socket.until(ErrorReply)
        assert reply.error.code == "too_many_requests"
        hold.go_on.set()
        assert await socket.until(Result)


async def test_a_message_too_large_ends_the_connection(api: Api) -> None:
    """A message over the size limit ends the connection."""
    async with api.socket() as socket:
        await socket.open()
        await socket.connection.send("x" * 3 * 1024**2)
        assert (await socket.closed())[0] in (1006, 1009)
