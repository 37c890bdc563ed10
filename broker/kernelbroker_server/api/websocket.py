"""The WebSocket /api/v1/ws: a connection has one session, receives operations and sends events.

A connection sends the events of all executions that are submitted to its session while it is open;
`resume` sends those of earlier ones. It has its own cursor in each log and waits for its socket, so a slow
client delays no other one. A client that does not answer pings, or falls too far behind, is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine
from datetime import datetime
from typing import Any

from kernelbroker.protocol.codec import decode_operation, encode
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    KernelBrokerError,
    NotFound,
    ProtocolError,
    RequestError,
    SessionGone,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.findings import Assessment
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
    Stdin,
)
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError

from ..kernels.channel import ChannelClosed
from ..sessions.session import Session
from ..sessions.store import ExecutionLog, Watcher
from . import credentials
from .base import Authenticated, error_body
from .descriptions import session_info, utc_time
from .operation_names import Echo, echo, name_of
from .other_brokers import Relayed
from .text_frames import WebSocket, write_texts

logger = logging.getLogger(__name__)

_MAX_TASKS = 256
"""Operations of one connection that may be under way at once."""
_MAX_ASSESSED = 32
"""Executions of one connection that may wait for their assessment. Nothing more is read at this limit."""
_MAX_EARLY = 32
"""Operations that a client may send while its session is being opened."""


class SessionSocket(Authenticated, WebSocket):
    """One client's connection."""

    async def get(self, *args: Any, **kwargs: Any) -> None:
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise BadRequest("this path speaks WebSocket: connect with a WebSocket client")
        await super().get(*args, **kwargs)

    def check_origin(self, origin: str) -> bool:
        """Refuse web pages of other origins; programs send no Origin header. Raises HTTPError."""
        allowed = self.service.allowed_origins
        if super().check_origin(origin) or origin.lower() in allowed:
            return True
        logger.info("a page of another origin was refused")
        raise HTTPError(403)  # Tornado's own answer would not be JSON

    def open(self, *_args: str, **_kwargs: str) -> None:
        self.set_nodelay(True)
        self._session: Session | None = None
        self._submitted: list[ExecutionLog] = []
        self._accepting: dict[asyncio.Task[None], Execute] = {}
        """Executions that are being assessed, or wait for an earlier one, in the order of arrival."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        """Waits for the session. It can be cancelled until it has one."""
        self._last: asyncio.Task[None] | None = None
        """The latest operation that came during the opening. Each waits for the one before."""
        self._pumping: asyncio.Task[None] | None = None
        self._watching = contextlib.ExitStack()
        self._relay: Relayed | None = None
        """To the broker that owns the session, if that is another one."""
        self.service.websockets.add(self)

    def on_close(self) -> None:
        if self not in self.service.websockets:  # refused, so it was never opened
            return
        self.service.websockets.discard(self)
        self._watching.close()
        if self._relay is not None:
            self._relay.abort()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(SessionGone):
            for log in self._submitted:
                if self._session is not None and log.request.on_disconnect == "interrupt":
                    self._session.interrupt(log.id)  # running or queued

    async def on_message(self, message: str | bytes) -> None:
        if self._relay is not None:
            await self._relay.send(message)
            return
        # Tornado awaits this before it reads the next frame. Long work is spawned, so that an interrupt
        # is read while a cell runs, and a disconnect is noticed while a session is being opened.
        try:
            operation = decode_operation(message)
        except ProtocolError as exc:
            await self._refuse(echo(message), exc)
            return
        is_first = self._session is None and self._opening is None and self._last is None
        if is_first and isinstance(operation, Open) and await self._is_elsewhere(operation):
            if self._relay is not None:
                await self._relay.send(message)
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
            await asyncio.sleep(0)  # it begins, so that a `close` right behind `open` cancels it
        else:
            await self._take(operation)

    async def last_words(self) -> None:
        """Wait until the client has received the end of its session."""
        is_left = self._session is not None and self._session.is_left
        if self._pumping is not None and not is_left:
            await asyncio.wait([self._pumping])

    async def _is_elsewhere(self, operation: Open) -> bool:
        """Whether another broker has the session, or it cannot be found. The client is answered then."""
        cluster = self.service.cluster
        token = self.given_token()
        if cluster is None or not token:
            return False
        headers = credentials.passed_on(self.request.headers, token, self.request_id)
        try:
            self._relay = await cluster.relay(self.tenant.name, operation.session_id, headers)
        except RequestError as exc:
            await self._refuse(operation, exc)
            return True
        if self._relay is None:
            return False
        if self.ws_connection is None:
            self._relay.abort()
        else:
            self._pumping = self._spawn(self._relay.run(self.write_message, self.close))
        return True

    # Operations.

    async def _take(self, operation: Operation, before: asyncio.Task[None] | None = None) -> None:
        """Perform or refuse an operation after the operation `before` it."""
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
        options = operation.options()
        self._opening = asyncio.current_task()
        try:  # cancelled by a disconnect, and by `close`
            if operation.created_at is not None:
                await self._expect_known(operation.session_id or "", operation.created_at)
            session, is_new = await self.tenant.sessions.open(options)
        except asyncio.CancelledError:
            if self.ws_connection is None:
                raise
            raise SessionGone("its client closed the session before it was open") from None
        finally:
            self._opening = None
        if self.ws_connection is None:
            if is_new:
                reason = "its client went away while it was opened"
                self.tenant.sessions.close_soon(session, reason)
            return
        self._session = session
        executions = self._watching.enter_context(session.watch())
        self._pumping = self._spawn(self._pump(session, executions))
        await self._send(Opened(session=session_info(session), is_new=is_new))

    async def _expect_known(self, session_id: str, created_at: datetime) -> None:
        """Check that the client's session is still there. Raises SessionGone with the reason if not."""
        with contextlib.suppress(NotFound):
            session = await self.tenant.sessions.resolve(session_id)
            if utc_time(session.created_at) == created_at:
                return
        raise SessionGone("the broker no longer knows the session, and its state is lost")

    async def _perform(self, session: Session, operation: Operation) -> None:
        match operation:
            case Execute() if not self._accepting and not self._is_assessed(session):
                self._submit(session, operation.request(), operation.allow_stdin)
            case Execute():
                while len(self._accepting) >= _MAX_ASSESSED:
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
                await session.answer(operation.execution_id, operation.value)
                await self._done(operation)
            case Resume():
                log = session.execution(operation.execution_id)
                self._spawn(self._follow(log, operation.after))
            case Restart():
                self._spawn(self._finish(operation, session.restart()))
            case Close(when_idle=True):
                self.tenant.sessions.close_when_idle(session)
                await self._done(operation)
            case Close():
                # The session closes even if its client does not wait for the answer.
                closing = self.tenant.sessions.close_soon(session)
                self._spawn(self._finish(operation, asyncio.shield(closing)))
            case Open():
                raise Conflict("this connection has a session already; open another connection")

    async def _accept(
        self, session: Session, operation: Execute, earlier: asyncio.Task[None] | None
    ) -> None:
        """Assess the code, and submit it after the executions that came before it."""
        request = operation.request()
        try:
            try:
                assessment = await self.tenant.executions.assess_for(session, request)
            finally:
                if earlier is not None:
                    await asyncio.wait([earlier])
            if self.ws_connection is None and request.on_disconnect == "interrupt":
                return  # the client has disconnected
            self._submit(session, request, operation.allow_stdin, assessment)
        except RequestError as exc:
            await self._refuse(operation, exc)

    def _is_assessed(self, session: Session) -> bool:
        return self.tenant.executions.are_assessed(session.options.template)

    def _submit(
        self,
        session: Session,
        request: ExecutionRequest,
        allow_stdin: bool,
        assessment: Assessment | None = None,
    ) -> None:
        log = self.tenant.executions.submit(
            session, request, allow_stdin=allow_stdin, assessment=assessment
        )
        self._submitted = [*(log for log in self._submitted if log.result is None), log]

    def _to_wait_for(self, operation: Interrupt | Stdin | Resume) -> asyncio.Task[None] | None:
        """Return the task that accepts the execution named by the operation, if there is one."""
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
        await self._send(Done(op=name_of(operation), op_id=getattr(operation, "op_id", None)))

    async def _refuse(self, operation: Operation | Echo, exc: Exception) -> None:
        if isinstance(exc, ChannelClosed):
            exc = Conflict("the execution has ended and does not wait for input")
        if isinstance(exc, Unavailable) and self.service.cluster and self.service.tenants.stopping:
            self.close(1001, "another broker goes on with the session")
            return
        reply = ErrorReply(
            error=error_body(exc, self.request_id),
            op=operation.op if isinstance(operation, Echo) else name_of(operation),
            op_id=getattr(operation, "op_id", None),
            execution_id=getattr(operation, "execution_id", None),
        )
        await self._send(reply)

    # Events.

    async def _pump(self, session: Session, executions: Watcher) -> None:
        """Send the events of each execution from now on, then the reason why the session ended."""
        while (log := await executions.get()) is not None:
            await self._follow(log, 0)
        if session.closed_reason is None:
            self.close(1008, "too far behind; reconnect and resume")
            return
        if answering := self._tasks - {asyncio.current_task()} | self._accepting.keys():
            await asyncio.wait(answering)  # nothing may follow `closed`
        await self._send(Closed(reason=session.closed_reason))
        self.close(1001 if self.service.tenants.stopping else 1000, "the session is closed")

    async def _follow(self, log: ExecutionLog, after: int) -> None:
        async with contextlib.aclosing(log.batches(after)) as batches:
            async for batch in batches:
                await write_texts(self, (stored.json for stored in batch))

    async def _send(self, reply: Reply) -> None:
        with contextlib.suppress(WebSocketClosedError, StreamClosedError):  # `on_close` handles it
            await self.write_message(encode(reply))

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
        task.add_done_callback(
            lambda _: work.close()
        )  # a task that was cancelled before its first step does not close it
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            with contextlib.suppress(WebSocketClosedError, StreamClosedError):
                await work
        except Exception:
            logger.exception("a WebSocket task failed")
            self.close(1011, "an internal error of the broker")
