"""/api/v1/ws: one connection, one session; operations in, events out.

Every connection of a session sees all executions submitted since it opened; earlier ones it can
`resume`. A connection reads the journals with cursors of its own and waits for its socket, so a slow
reader holds up nobody; one that does not answer pings, or falls too far behind, is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

import msgspec
from kernelbroker.protocol.codec import decode_as, decode_operation, encode
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    KernelBrokerError,
    ProtocolError,
    RequestError,
    SessionGone,
    TooManyRequests,
)
from kernelbroker.protocol.messages import (
    Close,
    Closed,
    Done,
    ErrorReply,
    Execute,
    ExecutionRequest,
    Interrupt,
    Open,
    Opened,
    Operation,
    Reply,
    Restart,
    Resume,
    SessionOptions,
    Stdin,
)
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from ..kernels.client import ChannelClosed
from ..sessions.execution import Execution, ExecutionState
from ..sessions.session import Session
from .base import Authenticated, error_body
from .sessions import info

logger = logging.getLogger(__name__)

_MAX_TASKS = 256
"""Operations of one connection that may be under way at once."""
_MAX_JUDGED = 32
"""Executions of one connection that may wait to be judged; no more is read while there are so many."""
_MAX_EARLY = 32
"""The same for what is sent while the session is opened."""


class SessionSocket(Authenticated, WebSocketHandler):
    """One client's connection."""

    async def get(self, *args: Any, **kwargs: Any) -> None:
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise BadRequest("this path speaks WebSocket: connect with a WebSocket client")
        await super().get(*args, **kwargs)

    def check_origin(self, origin: str) -> bool:
        """Only a browser sends an Origin, for a page that may be anybody's. Raises HTTPError."""
        allowed = self.service.allowed_origins
        if super().check_origin(origin) or origin.lower() in allowed:
            return True
        logger.info("a page of another origin was refused")
        raise HTTPError(403)  # Tornado's own answer would not be JSON

    def open(self, *_args: str, **_kwargs: str) -> None:
        self.set_nodelay(True)
        self._session: Session | None = None
        self._submitted: list[Execution] = []
        self._accepting: dict[asyncio.Task[None], Execute] = {}
        """Executions that are judged, or wait for one that is, in the order in which they were sent."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        """What waits for the session, which may be given up as long as it does."""
        self._last: asyncio.Task[None] | None = None
        """The last of what was sent while the session was opened; each waits for the one before."""
        self._pumping: asyncio.Task[None] | None = None
        self._watching = contextlib.ExitStack()
        self.service.websockets.add(self)

    def on_close(self) -> None:
        self.service.websockets.discard(self)
        self._watching.close()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(SessionGone):
            for execution in self._submitted:
                if self._session is not None and execution.request.on_disconnect == "interrupt":
                    self._session.interrupt(execution.id)  # also where it still waits

    async def on_message(self, message: str | bytes) -> None:
        # Awaited before the next frame is read; what takes long is spawned, so that an interrupt
        # can be read while a cell runs or is judged, and a client that goes away while its session
        # is opened is seen to.
        try:
            operation = decode_operation(message)
        except ProtocolError as exc:
            await self._refuse(_echo(message), exc)
            return
        if self._opening is not None and isinstance(operation, Close):
            self._opening.cancel()
            await self._done(operation)
            return
        before = self._last if self._last is not None and not self._last.done() else None
        if before is not None and len(self._tasks) > _MAX_EARLY:
            await asyncio.wait([before])
            before = None
        if before is not None or (self._session is None and isinstance(operation, Open)):
            self._last = self._spawn(self._take(operation, before))
            await asyncio.sleep(0)  # It begins: a 'close' right behind 'open' ends the opening.
        else:
            await self._take(operation)

    async def last_words(self) -> None:
        """Wait until a session that has ended has had its last word."""
        if self._pumping is not None:
            await asyncio.wait([self._pumping])

    # Operations.

    async def _take(self, operation: Operation, before: asyncio.Task[None] | None = None) -> None:
        """Perform it, or tell why not, when what comes `before` is through."""
        if before is not None:
            await asyncio.wait([before])
        try:
            if self._session is not None:
                await self._perform(self._session, operation)
            elif isinstance(operation, Open):
                await self._open_session(operation)
            else:
                raise BadRequest("the first message must be an 'open' operation")
        except (KernelBrokerError, ChannelClosed) as exc:
            await self._refuse(operation, exc)

    async def _open_session(self, operation: Open) -> None:
        fields = SessionOptions.__struct_fields__
        options = SessionOptions(**{name: getattr(operation, name) for name in fields})
        self._opening = asyncio.current_task()
        try:  # a client that goes away meanwhile, or closes it again, cancels it
            session, is_new = await self.registry.open(options)
        except asyncio.CancelledError:
            if self.ws_connection is None:
                raise
            raise SessionGone("its client closed the session before it was open") from None
        finally:
            self._opening = None
        if self.ws_connection is None:
            if is_new:
                reason = "its client went away while it was opened"
                self.registry.close_soon(session, reason)
            return
        self._session = session
        executions = self._watching.enter_context(session.executions.watch())
        self._pumping = self._spawn(self._pump(session, executions))
        await self._send(Opened(session=info(session, self.service.backend.isolation)))

    async def _perform(self, session: Session, operation: Operation) -> None:
        match operation:
            case Execute():
                while len(self._accepting) >= _MAX_JUDGED:
                    await asyncio.wait([next(iter(self._accepting))])
                earlier = next(reversed(self._accepting), None)
                task = self._started(self._accept(session, operation, earlier))
                self._accepting[task] = operation
                task.add_done_callback(self._accepting.pop)
            case Interrupt() | Stdin() | Resume() if accepting := self._to_wait_for(operation):
                self._spawn(self._take(operation, accepting))
            case Interrupt():
                session.interrupt(operation.execution_id)
                await self._done(operation)
            case Stdin():
                await session.execution(operation.execution_id).answer(operation.value)
                await self._done(operation)
            case Resume():
                execution = session.execution(operation.execution_id)
                self._spawn(self._follow(execution, operation.after))
            case Restart():
                self._spawn(self._finish(operation, session.restart()))
            case Close():
                # The session closes even if its client does not wait for the answer.
                closing = self.registry.close_soon(session, "its client closed it")
                self._spawn(self._finish(operation, asyncio.shield(closing)))
            case Open():
                raise Conflict("this connection has its session; use another connection")

    async def _accept(
        self, session: Session, operation: Execute, earlier: asyncio.Task[None] | None
    ) -> None:
        """Have the code judged, and submit it when what was sent before it has been."""
        fields = ExecutionRequest.__struct_fields__
        request = ExecutionRequest(**{name: getattr(operation, name) for name in fields})
        try:
            try:
                assessment = await session.judge(request)
            finally:
                if earlier is not None:
                    await asyncio.wait([earlier])
            if self.ws_connection is None and request.on_disconnect == "interrupt":
                return  # its client went away meanwhile
            execution = session.submit(
                request, allow_stdin=operation.allow_stdin, assessment=assessment
            )
        except RequestError as exc:
            await self._refuse(operation, exc)
            return
        self._submitted = [e for e in self._submitted if e.state is not ExecutionState.DONE]
        self._submitted.append(execution)

    def _to_wait_for(self, operation: Interrupt | Stdin | Resume) -> asyncio.Task[None] | None:
        """What accepts the execution that is meant, if that was sent before and is not accepted yet."""
        meant, sent = operation.execution_id, reversed(self._accepting.items())
        found = (task for task, each in sent if each.execution_id == meant)
        return None if meant is None else next(found, None)

    async def _finish(self, operation: Operation, work: Awaitable[None]) -> None:
        try:
            await work
        except RequestError as exc:
            await self._refuse(operation, exc)
        else:
            await self._done(operation)

    async def _done(self, operation: Operation) -> None:
        await self._send(Done(op=_name(operation), op_id=getattr(operation, "op_id", None)))

    async def _refuse(self, operation: Operation | _Echo, exc: Exception) -> None:
        if isinstance(exc, ChannelClosed):
            exc = Conflict("the execution has ended; nobody waits for input")
        reply = ErrorReply(
            error=error_body(exc, self.request_id),
            op=operation.op if isinstance(operation, _Echo) else _name(operation),
            op_id=getattr(operation, "op_id", None),
            execution_id=getattr(operation, "execution_id", None),
        )
        await self._send(reply)

    # Events.

    async def _pump(self, session: Session, executions: asyncio.Queue[Execution | None]) -> None:
        """Send the events of every execution from now on, then how the session ended."""
        while (execution := await executions.get()) is not None:
            await self._follow(execution, 0)
        if session.closed_reason is None:
            self.close(1008, "too far behind; reconnect and resume")
            return
        if answering := self._tasks - {asyncio.current_task()} | self._accepting.keys():
            await asyncio.wait(answering)  # nothing may come after the last word
        await self._send(Closed(reason=session.closed_reason))
        self.close(1001 if self.service.registries.stopping else 1000, "the session is closed")

    async def _follow(self, execution: Execution, after: int) -> None:
        async for entry in execution.journal.follow(after):
            await self.write_message(entry.json.decode())

    async def _send(self, reply: Reply) -> None:
        with contextlib.suppress(WebSocketClosedError, StreamClosedError):  # `on_close` sees to it
            await self.write_message(encode(reply).decode())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if len(self._tasks) >= _MAX_TASKS:
            work.close()
            raise TooManyRequests("too many operations are under way on this connection")
        task = self._started(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _started(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work))
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            with contextlib.suppress(WebSocketClosedError, StreamClosedError):
                await work
        except Exception:
            logger.exception("a WebSocket task failed")
            self.close(1011, "a fault of the broker's own")


class _Echo(msgspec.Struct):
    """What of a malformed operation still tells whose answer its error is."""

    op: str | None = None
    op_id: str | None = None
    execution_id: str | None = None


def _echo(message: str | bytes) -> _Echo:
    try:
        return decode_as(message, _Echo)
    except ProtocolError:
        return _Echo()


def _name(operation: Operation) -> str:
    return str(type(operation).__struct_config__.tag)
