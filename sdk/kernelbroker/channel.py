"""The WebSocket of one session: what is asked, what comes back, and a lost connection taken up again.

One task reads and hands each event to the inbox of its execution; whoever runs a cell takes the events
out of there. Three rules:

- *Nothing is run twice.* The client names its executions. After a lost connection it opens the session
  anew under its id and asks for everything after the last event it saw; only the answer that the broker
  never got the execution lets it be sent once more. A session that is another one under the same id
  (a broker that forgot) is refused.
- *Nothing grows without end.* While an inbox is full and nobody waits for anything on this connection,
  the socket is not read, and the broker feels it. As long as somebody does wait, for another execution
  or an answer, reading goes on, or a consumer that waits for the one before it takes from the other
  would wait for ever; what a full inbox then gets is bounded by the broker's limit on output.
- *Nobody reconnects for nothing.* A lost connection is replaced when somebody waits.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TypeAlias

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from .dial import checked, dial, dial_again, hang_up
from .discovery import Address
from .inbox import Inbox
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
from .replies import Replies
from .rest import from_wire

Control: TypeAlias = Interrupt | Restart | Stdin | Close

FRUITLESS_CONNECTIONS = 3
"""So many connections in a row that ended before anything was heard are enough."""

_log = logging.getLogger("kernelbroker")


class Channel:
    """The connection of one session, from `open` to `close`; for one event loop.

    `keep` leaves the session running when the channel closes.
    """

    def __init__(self, address: Address, request: Open, *, keep: bool, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._request = request
        self._farewell = None if keep else Close()
        self._timeout = timeout
        self._info: SessionInfo | None = None
        self._websocket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._failure: KernelBrokerError | None = None
        self._inboxes: dict[str, Inbox] = {}
        self._replies = Replies()
        # `_ready` is set while there is a connection, or will never be one again.
        self._ready = asyncio.Event()
        self._asking = 0
        self._wake = asyncio.Event()

    @property
    def info(self) -> SessionInfo:
        assert self._info is not None, "only an open channel has a session"
        return self._info

    @property
    def is_connected(self) -> bool:
        return self._websocket is not None and self._failure is None and self._is_here

    @property
    def has_lost_session(self) -> bool:
        """Whether the session may be there still, but out of reach of this channel."""
        return not self.is_connected and not isinstance(self._failure, SessionGone)

    @property
    def _is_here(self) -> bool:
        return asyncio.get_running_loop() is self._loop

    async def open(self) -> None:
        """Connect and open the session.

        Raises:
            ConnectionFailed: no broker there, or no answer in time.
            RequestError: the broker refused.
        """
        self._websocket, self._info = await dial(
            self._address, self._request, self._timeout, self._farewell
        )
        self._ready.set()
        self._reader = asyncio.create_task(self._run(self._websocket), name="kernelbroker-reader")

    async def close(self) -> None:
        """Close the session unless it is to be kept, and the connection in any case.

        From another event loop nothing can be done here; the connection ends with its own.
        """
        if not self._is_here:
            return
        websocket, self._websocket = self._websocket, None
        farewell = self._farewell if self._failure is None else None
        self._end(SessionGone("this client closed the session"))
        try:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait([self._reader])
        finally:
            if websocket is not None:
                await hang_up(websocket, farewell)

    async def ready(self) -> ClientConnection:
        """The connection, made anew where it was lost.

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

    async def execute(self, request: Execute, execution_id: str) -> Inbox:
        """Send a cell; its events come with `receive`, and the caller's next duty is `leave`.

        Raises:
            BadRequest: the broker would refuse the request.
        """
        data = checked(request)
        websocket = await self.ready()
        inbox = self._inboxes[execution_id] = Inbox(request, execution_id)
        self._asking += 1
        self._wake.set()
        try:
            await websocket.send(data, text=True)
        except ConnectionClosed:
            pass  # Nobody knows whether it arrived; the reader asks when it has connected again.
        except BaseException:
            await self.leave(inbox)
            raise
        finally:
            self._asking -= 1
        return inbox

    async def receive(self, inbox: Inbox) -> Event:
        """The next event of an execution."""
        while not inbox.events:
            if inbox.failure is not None:
                raise inbox.failure
            if inbox.to_send_again:
                inbox.to_send_again = False
                await self._say(inbox.request)
            waiter = inbox.waiter = asyncio.get_running_loop().create_future()
            self._wake.set()
            try:
                await waiter
            finally:
                inbox.waiter = None
        was_full = inbox.full
        event = inbox.take()
        if was_full:
            self._wake.set()
        return event

    async def leave(self, inbox: Inbox) -> None:
        """Forget an execution. If it has not ended and asks for it, it is interrupted."""
        unfinished = self._inboxes.pop(inbox.execution_id, None) is not None
        inbox.events.clear()
        inbox.size = 0
        self._wake.set()
        if unfinished and inbox.request.on_disconnect == "interrupt" and inbox.failure is None:
            await self._say(Interrupt(execution_id=inbox.execution_id))

    # Everything else.

    async def operate(self, operation: Control) -> None:
        """Send an operation and wait until it is done.

        Raises:
            ConnectionLost: no answer came; whether it was carried out is not known.
            RequestError: the broker refused.
        """
        operation.op_id = op_id = self._replies.new_id()
        websocket = await self.ready()
        with self._replies.expected(op_id) as reply:
            self._wake.set()
            try:
                async with asyncio.timeout(self._timeout):
                    await websocket.send(encode(operation), text=True)
                    await reply
            except ConnectionClosed as exc:
                raise _unanswered() from exc
            except TimeoutError as exc:
                raise ConnectionLost(f"the broker did not answer in {self._timeout:g} s") from exc

    async def _say(self, operation: Operation) -> None:
        """Send what nobody waits for, if there is a connection."""
        if self._websocket is not None:
            with suppress(ConnectionClosed):  # The reader notices.
                await self._websocket.send(encode(operation), text=True)

    # The connection.

    async def _run(self, websocket: ClientConnection) -> None:
        """Read until the session ends, on one connection after the other."""
        fruitless = 0
        try:
            while True:
                fruitless = 0 if await self._read(websocket) else fruitless + 1
                self._ready.clear()
                self._websocket = None
                self._replies.fail_all(_unanswered())
                if fruitless >= FRUITLESS_CONNECTIONS:
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
                await hang_up(lost, None)

    async def _read(self, websocket: ClientConnection) -> bool:
        """Hand out what comes until the connection ends; False if nothing came at all."""
        heard = False
        while True:
            try:
                data = await websocket.recv(decode=False)
            except ConnectionClosed:
                return heard
            heard = True
            message = decode_incoming(data)
            if isinstance(message, Reply):
                self._take_reply(message)
            elif message is not None:
                await self._take_event(message, len(data))

    async def _take_event(self, event: Event, size: int) -> None:
        inbox = self._inboxes.get(event.execution_id)
        if inbox is not None:
            inbox.put(event, size)
            if inbox.seen == event.seq and isinstance(event, Result):
                del self._inboxes[event.execution_id]
            while inbox.full and not self._is_awaited():
                self._wake.clear()
                await self._wake.wait()

    def _take_reply(self, message: Reply) -> None:
        match message:
            case Done(op_id=op_id):
                self._replies.done(op_id)
            case ErrorReply(error=error, op_id=op_id, execution_id=execution_id):
                failure = from_wire(self._address, error)
                if self._replies.refuse(op_id, failure):
                    pass
                elif (inbox := self._inboxes.get(execution_id or "")) is not None:
                    self._refuse(inbox, failure)
                elif op_id is None and execution_id is None:
                    # It could be the answer to anything; nobody may wait for ever.
                    self._fail_all(failure)
            case Closed(reason=reason):
                raise SessionGone(f"the session has ended: {reason}")
            case Opened():
                pass

    def _refuse(self, inbox: Inbox, failure: KernelBrokerError) -> None:
        never_arrived = inbox.resuming and inbox.seen == 0 and isinstance(failure, NotFound)
        if never_arrived and not inbox.was_sent_again:
            inbox.resuming = False
            inbox.was_sent_again = inbox.to_send_again = True
            inbox.wake()
        else:
            del self._inboxes[inbox.execution_id]
            inbox.fail(failure)

    def _is_awaited(self) -> bool:
        """Whether anybody waits for something that this connection has to bring."""
        return bool(
            self._replies
            or self._asking
            or any(inbox.waiter is not None for inbox in self._inboxes.values())
        )

    async def _until_awaited(self) -> None:
        while not self._is_awaited():
            self._wake.clear()
            await self._wake.wait()

    async def _resume(self) -> ClientConnection:
        """Connect to the same session, and ask for what was missed."""
        websocket, info = await dial_again(self._address, self._request, self._timeout, self.info)
        self._websocket, self._info = websocket, info
        for inbox in list(self._inboxes.values()):
            inbox.resuming = True
            await self._say(Resume(execution_id=inbox.execution_id, after=inbox.seen))
        self._ready.set()
        return websocket

    def _fail_all(self, failure: KernelBrokerError) -> None:
        self._replies.fail_all(failure)
        for inbox in self._inboxes.values():
            inbox.fail(failure)
        self._inboxes.clear()

    def _end(self, failure: KernelBrokerError) -> None:
        """Nothing more comes."""
        if self._failure is None:
            self._failure = failure
            self._ready.set()
            self._fail_all(failure)


def _unanswered() -> ConnectionLost:
    return ConnectionLost(
        "the connection was lost before the broker answered; "
        "whether it did what was asked is not known"
    )
