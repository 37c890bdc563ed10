"""The connection of one session: requests, events, and how a lost connection is resumed.

One task reads the WebSocket and puts each event into the queue of its execution; the callers of
`receive` take the events out. Three rules:

- *Nothing runs twice.* The client chooses the ids of its executions. After a lost connection it opens
  the session again by its id and asks for all events after the last one that it has. An execution is
  sent a second time only if the broker answers that it never got it. If the broker has forgotten the
  session and opens another one under the same id, that is an error.
- *Nothing grows without bound.* While a queue is full and no caller waits for this connection, the
  socket is not read, so the broker stops sending. While a caller waits, for another execution or for an
  answer, reading continues; otherwise that caller would wait forever. What a full queue then gets is
  bounded by the broker's limit on output.
- *A lost connection is replaced only when a caller waits for it.*
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TypeAlias

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from .discovery import Address
from .event_queue import EventQueue
from .http_errors import error_from_wire
from .pending_replies import PendingReplies
from .protocol.codec import decode_incoming, encode
from .protocol.errors import (
    ConnectionLost,
    KernelBrokerError,
    NotFound,
    SessionGone,
)
from .protocol.events import Event, Result
from .protocol.messages import (
    Close,
    Closed,
    Done,
    ErrorReply,
    Execute,
    Interrupt,
    Open,
    Opened,
    Operation,
    Reply,
    Restart,
    Resume,
    SessionInfo,
    Stdin,
)
from .websocket import Timeouts, checked, connect_session, disconnect, reconnect_session

Control: TypeAlias = Interrupt | Restart | Stdin | Close

MAX_EMPTY_CONNECTIONS = 3
"""The session fails after so many connections in a row that ended before any message came."""

_log = logging.getLogger("kernelbroker")


class SessionConnection:
    """The connection of one session, from `open` to `close`, for one event loop.

    Args:
        request: opens the session, also after a lost connection.
        keep: `close` closes the connection and leaves the session open. With None it does so if the session
            was there before.
        timeouts: for the broker's answers.
    """

    def __init__(
        self, address: Address, request: Open, *, keep: bool | None, timeouts: Timeouts
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._request = request
        self._keep = keep
        self._timeouts = timeouts
        self._info: SessionInfo | None = None
        self._websocket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._failure: KernelBrokerError | None = None
        self._queues: dict[str, EventQueue] = {}
        self._replies = PendingReplies()
        # `_ready` is set while there is a connection, and once there will be none any more.
        self._ready = asyncio.Event()
        self._asking = 0
        self._wake = asyncio.Event()

    @property
    def info(self) -> SessionInfo:
        assert self._info is not None, "only an open connection has a session"
        return self._info

    @property
    def is_connected(self) -> bool:
        return self._websocket is not None and self._failure is None and self._is_here

    @property
    def keeps(self) -> bool:
        """Whether `close` leaves the session open."""
        return bool(self._keep)

    @property
    def has_lost_session(self) -> bool:
        """Whether the session may still exist although this connection cannot reach it."""
        return not self.is_connected and not isinstance(self._failure, SessionGone)

    @property
    def _is_here(self) -> bool:
        return asyncio.get_running_loop() is self._loop

    async def open(self, known: SessionInfo | None = None) -> None:
        """Connect and open the session.

        Args:
            known: open this session, and no other one that may have its id.

        Raises:
            ConnectionFailed: the broker cannot be reached, or does not answer in time.
            SessionGone: the `known` session has ended.
            RequestError: the broker refused.
        """
        # A session that may be another client's is not closed if this one gives up. The broker itself
        # closes a new one whose client goes away before it is open.
        farewell = Close() if self._keep is False else None
        self._websocket, opened = await connect_session(
            self._address, self._request, self._timeouts, farewell, known
        )
        self._info = opened.session
        if self._keep is None:
            self._keep = not opened.is_new
        self._ready.set()
        self._reader = asyncio.create_task(self._run(self._websocket), name="kernelbroker-reader")

    async def close(self, *, when_idle: bool = False) -> None:
        """Close the session unless it is to be kept, and the connection in any case.

        Args:
            when_idle: the session closes when its executions have ended; this does not wait for it.

        Called in another event loop, this does nothing: the connection ends with its own loop.
        """
        if not self._is_here:
            return
        websocket, self._websocket = self._websocket, None
        to_close = not self._keep and self._failure is None
        farewell = Close(when_idle=when_idle) if to_close else None
        self._end(SessionGone("this client closed the session: open a new one"))
        try:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait([self._reader])
        finally:
            if websocket is not None:
                await disconnect(websocket, farewell)

    async def ready(self) -> ClientConnection:
        """The connection; a lost one is replaced.

        Raises:
            SessionGone: the session has ended.
            ConnectionLost: the broker cannot be reached any more, or not from this event loop.
        """
        if not self._is_here:
            raise ConnectionLost(
                "the session's connection belongs to another event loop, which may have ended; "
                "keep to one `asyncio.run` for each client, or use `kernelbroker.sync`"
            )
        while not self._ready.is_set():
            self._asking += 1
            self._wake.set()
            try:
                await self._ready.wait()
            finally:
                self._asking -= 1
        if self._failure is not None:
            raise self._failure
        assert self._websocket is not None
        return self._websocket

    # Executions.

    async def execute(self, request: Execute, execution_id: str) -> EventQueue:
        """Send a cell; its events come with `receive`, and the caller's next duty is `leave`.

        Raises:
            BadRequest: the broker would refuse the request.
        """
        data = checked(request)
        websocket = await self.ready()
        queue = self._queues[execution_id] = EventQueue(request, execution_id)
        self._asking += 1
        self._wake.set()
        try:
            await websocket.send(data, text=True)
        except ConnectionClosed:
            pass  # It may have arrived or not; the reader asks the broker after reconnecting.
        except BaseException:
            await self.leave(queue)
            raise
        finally:
            self._asking -= 1
        return queue

    async def receive(self, queue: EventQueue) -> Event:
        """The next event of an execution."""
        while not queue.events:
            if queue.failure is not None:
                raise queue.failure
            if queue.to_send_again:
                queue.to_send_again = False
                await self._send(queue.request)
            waiter = queue.waiter = asyncio.get_running_loop().create_future()
            self._wake.set()
            try:
                await waiter
            finally:
                queue.waiter = None
        was_full = queue.full
        event = queue.take()
        if was_full:
            self._wake.set()
        return event

    async def leave(self, queue: EventQueue) -> None:
        """Forget an execution. If it has not ended and asks for it, it is interrupted."""
        unfinished = self._queues.pop(queue.execution_id, None) is not None
        queue.events.clear()
        queue.size = 0
        self._wake.set()
        if unfinished and queue.request.on_disconnect == "interrupt" and queue.failure is None:
            await self._send(Interrupt(execution_id=queue.execution_id))

    # Other operations.

    async def operate(self, operation: Control) -> None:
        """Send an operation and wait until it is done.

        Raises:
            ConnectionLost: no answer came; whether it was carried out is not known.
            RequestError: the broker refused.
        """
        operation.op_id = op_id = self._replies.new_id()
        needs_sandbox = isinstance(operation, Restart)
        timeout = self._timeouts.opening if needs_sandbox else self._timeouts.answer
        websocket = await self.ready()
        with self._replies.expected(op_id) as reply:
            self._wake.set()
            try:
                async with asyncio.timeout(timeout):
                    await websocket.send(encode(operation), text=True)
                    await reply
            except ConnectionClosed as exc:
                raise _unanswered() from exc
            except TimeoutError as exc:
                raise ConnectionLost(
                    f"the broker did not answer in {timeout:g} s; it may still have carried it out"
                ) from exc

    async def _send(self, operation: Operation) -> None:
        """Send an operation whose answer is not awaited, if there is a connection."""
        if self._websocket is not None:
            with suppress(ConnectionClosed):  # The reader notices.
                await self._websocket.send(encode(operation), text=True)

    # The connection.

    async def _run(self, websocket: ClientConnection) -> None:
        """Read until the session ends; reconnect whenever the connection is lost."""
        empty = 0
        try:
            while True:
                empty = 0 if await self._read(websocket) else empty + 1
                self._ready.clear()
                self._websocket = None
                self._replies.fail_all(_unanswered())
                if empty >= MAX_EMPTY_CONNECTIONS:
                    raise ConnectionLost(f"{self._address.url} ends each connection at once")
                await self._until_awaited()
                websocket = await self._resume()
        except KernelBrokerError as exc:
            self._end(exc)
        except Exception as exc:
            _log.exception("the reader of a session failed")
            self._end(ConnectionLost(f"a fault of this client: {exc!r}"))
        finally:
            self._end(
                ConnectionLost("its reader was cancelled, as happens where an event loop ends")
            )
            if self._websocket is not None:
                lost, self._websocket = self._websocket, None
                await disconnect(lost, None)

    async def _read(self, websocket: ClientConnection) -> bool:
        """Dispatch messages until the connection ends; returns whether any message came."""
        has_read = False
        while True:
            try:
                data = await websocket.recv(decode=False)
            except ConnectionClosed:
                return has_read
            has_read = True
            message = decode_incoming(data)
            if isinstance(message, Reply):
                self._take_reply(message)
            elif message is not None:
                await self._take_event(message, len(data))

    async def _take_event(self, event: Event, size: int) -> None:
        queue = self._queues.get(event.execution_id)
        if queue is not None:
            queue.put(event, size)
            if queue.seen == event.seq and isinstance(event, Result):
                del self._queues[event.execution_id]
            while queue.full and not self._is_awaited():
                self._wake.clear()
                await self._wake.wait()

    def _take_reply(self, message: Reply) -> None:
        match message:
            case Done(op_id=op_id):
                self._replies.done(op_id)
            case ErrorReply(error=error, op_id=op_id, execution_id=execution_id):
                failure = error_from_wire(self._address, error)
                if self._replies.refuse(op_id, failure):
                    pass
                elif (queue := self._queues.get(execution_id or "")) is not None:
                    self._refuse(queue, failure)
                elif op_id is None and execution_id is None:
                    # It may be the answer to any operation, so all waiting callers get it.
                    self._fail_all(failure)
            case Closed(reason=reason):
                raise SessionGone(f"the session has ended: {reason}")
            case Opened():
                pass

    def _refuse(self, queue: EventQueue, failure: KernelBrokerError) -> None:
        never_arrived = queue.resuming and queue.seen == 0 and isinstance(failure, NotFound)
        if never_arrived and not queue.was_sent_again:
            queue.resuming = False
            queue.was_sent_again = queue.to_send_again = True
            queue.wake()
        else:
            del self._queues[queue.execution_id]
            queue.fail(failure)

    def _is_awaited(self) -> bool:
        """Whether a caller waits for something from this connection."""
        return bool(
            self._replies
            or self._asking
            or any(queue.waiter is not None for queue in self._queues.values())
        )

    async def _until_awaited(self) -> None:
        while not self._is_awaited():
            self._wake.clear()
            await self._wake.wait()

    async def _resume(self) -> ClientConnection:
        """Connect to the same session, and ask for the events that were missed."""
        websocket, opened = await reconnect_session(
            self._address, self._request, self._timeouts, self.info
        )
        self._websocket, self._info = websocket, opened.session
        for queue in list(self._queues.values()):
            queue.resuming = True
            await self._send(Resume(execution_id=queue.execution_id, after=queue.seen))
        self._ready.set()
        return websocket

    def _fail_all(self, failure: KernelBrokerError) -> None:
        self._replies.fail_all(failure)
        for queue in self._queues.values():
            queue.fail(failure)
        self._queues.clear()

    def _end(self, failure: KernelBrokerError) -> None:
        """Fail all callers that wait, now and later."""
        if self._failure is None:
            self._failure = failure
            self._ready.set()
            self._fail_all(failure)


def _unanswered() -> ConnectionLost:
    return ConnectionLost(
        "the connection was lost before the broker answered; "
        "whether it did what was asked is not known"
    )
