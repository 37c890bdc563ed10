"""A broker in the test's own process: real sockets, the real codec, and cells that are scripts.

It keeps what the protocol promises and no more: sessions by id, a journal and a `seq` for every
execution, one execution after the other, resume from the journal. A test says what a cell does
(`broker.cells[code]`), and can take the connection away, lose messages, or answer by hand.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

import pytest
from kernelbroker.protocol.codec import decode_operation, encode
from kernelbroker.protocol.events import ErrorDetail, Event, Result, Started, Stdout
from kernelbroker.protocol.messages import (
    Close,
    Closed,
    Done,
    ErrorBody,
    ErrorReply,
    Execute,
    Interrupt,
    Open,
    Opened,
    Operation,
    Restart,
    Resume,
    SessionInfo,
    Stdin,
)
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

TOKEN = "a-token-that-no-message-may-show"


@dataclass
class Execution:
    """One execution and its journal; a cell's script emits into it."""

    request: Execute
    journal: list[Event] = field(default_factory=list)
    watchers: set[ServerConnection] = field(default_factory=set)
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def emit(self, event: Event) -> None:
        event.execution_id = self.request.execution_id
        event.seq = len(self.journal) + 1
        self.journal.append(event)
        for watcher in list(self.watchers):
            await send(watcher, event)

    async def interruption(self) -> None:
        """Wait for an interrupt and end as a kernel would."""
        await self.interrupted.wait()
        detail = ErrorDetail(name="KeyboardInterrupt", value="", cause="interrupted")
        await self.emit(Result(success=False, error="KeyboardInterrupt: ", error_detail=detail))


Cell = Callable[[Execution], Awaitable[None]]


@dataclass
class FakeSession:
    info: SessionInfo
    executions: dict[str, Execution] = field(default_factory=dict)
    queue: asyncio.Queue[Execution] = field(default_factory=asyncio.Queue)
    running: Execution | None = None
    worker: asyncio.Task[None] | None = None


class FakeBroker:
    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.sessions: dict[str, FakeSession] = {}
        self.gone: dict[str, str] = {}
        self.connections: set[ServerConnection] = set()
        self.received: list[Operation] = []
        self.requests: list[str] = []
        self.changed = asyncio.Condition()
        self.lose: type[Operation] | None = None
        """Take the connection away when such an operation arrives, and do not do it."""
        self.refuse: dict[type[Operation], ErrorBody] = {}
        self.answers: list[object] = []
        """Sent as they are in place of the next answers to `open`."""
        self.is_up = True
        self.silent_on: set[type[Operation]] = set()
        self.server: Server | None = None
        self._ids = itertools.count(1)

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self.server = await serve(
            self._connection,
            "127.0.0.1",
            0,
            process_request=self._http,
            compression=None,
            max_size=None,
            write_limit=4096,
            close_timeout=1,
        )

    async def stop(self) -> None:
        self.drop()
        for session in self.sessions.values():
            session.worker.cancel()
        self.server.close()
        await self.server.wait_closed()

    def drop(self) -> None:
        """Take all connections away, as a failing network would."""
        for connection in self.connections:
            connection.transport.abort()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until something that the broker has seen makes `predicate` true."""
        async with self.changed, asyncio.timeout(5):
            await self.changed.wait_for(predicate)

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def ops(self, type_: type[Operation]) -> list[Operation]:
        return [op for op in self.received if type(op) is type_]

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request.path)
        if not self.is_up:
            return answer(connection, 503, {"error": {"code": "unavailable", "message": "No."}})
        if request.path == "/health":
            return answer(connection, 200, {"status": "ok"})
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            error = {"code": "unauthorized", "message": "Not a known token.", "request_id": "r1"}
            return answer(connection, 401, {"error": error})
        if request.path == "/api/v1/pool/status":
            return answer(connection, 200, {"idle_containers": 3})
        if request.path != "/api/v1/ws":
            error = {"code": "not_found", "message": "No such thing."}
            return answer(connection, 404, {"error": error})
        return None

    async def _connection(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        session = None
        try:
            async for message in connection:
                operation = decode_operation(message)
                self.received.append(operation)
                if type(operation) is self.lose:
                    self.lose = None
                    connection.transport.abort()
                elif type(operation) in self.silent_on:
                    pass
                elif error := self.refuse.get(type(operation)):
                    op_id = getattr(operation, "op_id", None)
                    execution_id = getattr(operation, "execution_id", None)
                    await send(
                        connection,
                        ErrorReply(error=error, op_id=op_id, execution_id=execution_id),
                    )
                elif isinstance(operation, Open):
                    session = await self._open(connection, operation)
                elif session is not None:
                    await self._operation(connection, session, operation)
                await self.notify()
        except ConnectionClosed:
            pass
        finally:
            self.connections.discard(connection)
            for execution in session.executions.values() if session else ():
                execution.watchers.discard(connection)
            await self.notify()

    async def _open(self, connection: ServerConnection, request: Open) -> FakeSession | None:
        if self.answers:
            await send(connection, self.answers.pop(0))
            return None
        if reason := self.gone.get(request.session_id):
            error = ErrorBody(code="session_gone", message=reason)
            await send(connection, ErrorReply(error=error, op="open"))
            return None
        session = self.sessions.get(request.session_id)
        if session is None:
            info = SessionInfo(
                session_id=request.session_id,
                state="idle",
                template=request.template,
                isolation="none",
                created_at=f"2026-11-21T00:00:{next(self._ids):02}Z",
                last_active_at="",
                idle_timeout=request.idle_timeout or 1800.0,
                max_lifetime=7200.0,
                executions=0,
                queued=0,
                restarts=0,
                metadata=request.metadata,
            )
            session = self.sessions[request.session_id] = FakeSession(info)
            session.worker = asyncio.create_task(self._work(session))
        await send(connection, Opened(session=session.info))
        return session

    async def _operation(
        self, connection: ServerConnection, session: FakeSession, operation: Operation
    ) -> None:
        match operation:
            case Execute():
                execution = Execution(operation)
                execution.watchers.add(connection)
                session.executions[operation.execution_id] = execution
                session.queue.put_nowait(execution)
            case Resume(execution_id=execution_id, after=after):
                execution = session.executions.get(execution_id)
                if execution is None:
                    error = ErrorBody(code="not_found", message="No such execution.")
                    await send(
                        connection, ErrorReply(error=error, op="resume", execution_id=execution_id)
                    )
                else:
                    for event in execution.journal[after:]:
                        await send(connection, event)
                    execution.watchers.add(connection)
            case Interrupt(op_id=op_id, execution_id=execution_id):
                meant = (
                    session.running if execution_id is None else session.executions[execution_id]
                )
                if meant is not None:  # one that waits ends as soon as its turn comes
                    meant.interrupted.set()
                await send(connection, Done(op="interrupt", op_id=op_id))
            case Restart(op_id=op_id):
                await send(connection, Done(op="restart", op_id=op_id))
            case Stdin(op_id=op_id, execution_id=execution_id, value=value):
                session.executions[execution_id].answers.put_nowait(value)
                await send(connection, Done(op="stdin", op_id=op_id))
            case Close(op_id=op_id):
                self.end(session.info.session_id, "closed by its client")
                await send(connection, Done(op="close", op_id=op_id))

    async def close_session(self, session_id: str, reason: str) -> None:
        """End a session as the broker would by itself."""
        self.end(session_id, reason)
        for connection in list(self.connections):
            await send(connection, Closed(reason=reason))

    def end(self, session_id: str, reason: str) -> None:
        self.gone[session_id] = reason
        self.sessions.pop(session_id).worker.cancel()

    async def _work(self, session: FakeSession) -> None:
        while True:
            session.running = execution = await session.queue.get()
            await execution.emit(Started(execution_count=1))
            await self.cells.get(execution.request.code, ok)(execution)
            session.running = None


async def ok(execution: Execution) -> None:
    await execution.emit(Result(success=True, execution_count=1, execution_time=0.001))


def printing(*texts: str) -> Cell:
    """A cell that prints these texts."""

    async def cell(execution: Execution) -> None:
        for text in texts:
            await execution.emit(Stdout(content=text))
        await ok(execution)

    return cell


def emitting(*events: Event) -> Cell:
    """A cell that emits these events; a result comes after them unless there is one."""

    async def cell(execution: Execution) -> None:
        for event in events:
            await execution.emit(event)
        if not isinstance(events[-1], Result):
            await ok(execution)

    return cell


async def forever(execution: Execution) -> None:
    """A cell that runs until it is interrupted."""
    await execution.interruption()


async def send(connection: ServerConnection, message: object) -> None:
    with suppress(ConnectionClosed):
        await connection.send(message if isinstance(message, str) else encode(message), text=True)


def answer(connection: ServerConnection, status: int, body: object) -> Response:
    return connection.respond(HTTPStatus(status), json.dumps(body))


class Scripts:
    """What tests need of this module, as a fixture: pytest's importlib mode shares no helpers."""

    printing = staticmethod(printing)
    emitting = staticmethod(emitting)
    forever = staticmethod(forever)
    ok = staticmethod(ok)
    token = TOKEN


@pytest.fixture
def scripts() -> type[Scripts]:
    return Scripts


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No test finds a broker that it was not given."""
    for name in ("KERNELBROKER_URL", "KERNELBROKER_TOKEN", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERNELBROKER_RUNTIME_FILE", str(tmp_path / "run" / "broker.json"))


@pytest.fixture
def connected(broker, monkeypatch: pytest.MonkeyPatch):
    """The fake broker is the one that is found, and lost connections are replaced without delay."""
    monkeypatch.setenv("KERNELBROKER_URL", broker.url)
    monkeypatch.setenv("KERNELBROKER_TOKEN", TOKEN)
    monkeypatch.setattr("kernelbroker.dial.RETRY_DELAYS", (0.0,) * 3)
    return broker


@pytest.fixture
def broker_in_thread():
    """The fake broker in a loop of another thread, and a way to run its coroutines there."""
    broker = FakeBroker()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    call(broker.start())
    yield broker, call
    call(broker.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
