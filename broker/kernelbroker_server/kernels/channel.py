"""The WebSocket channel of one kernel: send messages, and subscribe to received ones.

`GatewayConnection.start_kernel` opens a channel. The sandbox is hostile: an invalid frame ends the channel,
and a flood of messages does not block the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from kernelbroker.protocol.errors import ProtocolError
from kernelbroker_kernel.contract import ALL_SENT, KERNEL_ENDED
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from .framing import BROKER_SESSION, Incoming, Outgoing, decode_frame, encode_frame

logger = logging.getLogger(__name__)

_YIELD_MESSAGES = 64
_YIELD_BYTES = 1024**2
"""After so many messages or bytes the reader lets other tasks run."""
_MAX_INFO_BYTES = 65_536
_ACKNOWLEDGED_MESSAGES = 1000
_ACKNOWLEDGED_BYTES = 1024**2
"""After so many messages or bytes the gateway may forget what it has sent. It holds eight times as many."""


class ChannelClosed(Exception):
    """The channel has ended, or was never opened; the message is the reason."""


class Subscription:
    """The subscription of one callback to the messages of a channel, until the `with` block is left.

    Attributes:
        closed: resolved with the reason when the callback gets no more messages: the channel has
            ended, the callback has raised, or the block was left.
    """

    __slots__ = ("_callback", "_channel", "_parent_ids", "closed")

    def __init__(
        self,
        channel: KernelChannel,
        callback: Callable[[Incoming], None],
        parent_ids: tuple[str, ...] | None,
    ) -> None:
        self._channel = channel
        self._callback = callback
        self._parent_ids = parent_ids
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close("the subscription was closed")

    def close(self, reason: str) -> None:
        """End the subscription. A second call does nothing."""
        if not self.closed.done():
            self.closed.set_result(reason)
            self._channel._unsubscribe(self)


class KernelChannel:
    """The messages to and from one kernel, from opened to closed.

    Attributes:
        kernel_id: the id that the gateway has given to the kernel.
        closed: resolved with the reason when the channel has ended and no message follows.
        sent: the number of messages that the kernel was sent, also by earlier brokers.
        received: the number of the latest message that was received.
        exit_status: how the kernel has ended, as a shell gives it; None if the gateway did not tell.
        info: the content of the answer to `ask_info`, None before it has come.
        on_received: called from time to time, to store what the messages until now have led to and to
            `acknowledge` them. Without it they are acknowledged at once.
        on_all_sent: awaited when the kernel has ended and all its messages were received, which the gateway
            keeps until they are stored. Returns whether they are.
    """

    def __init__(
        self,
        kernel_id: str,
        websocket: ClientConnection,
        send_interrupt: Callable[[str], Awaitable[None]],
        *,
        sent: int = 0,
        received: int = 0,
        held: bool = False,
    ) -> None:
        """Start to read, with `held` not before `release`.

        Args:
            send_interrupt: asks the gateway to interrupt the kernel with this id.
        """
        self.kernel_id = kernel_id
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.sent = sent
        self.received = received
        self.exit_status: int | None = None
        self.info: bytes | None = None
        self.on_received: Callable[[], None] | None = None
        self.on_all_sent: Callable[[], Awaitable[bool]] | None = None
        self._websocket = websocket
        self._send_interrupt = send_interrupt
        self._acknowledging: set[asyncio.Task[None]] = set()
        self._released = asyncio.Event()
        if not held:
            self._released.set()
        # Tuples are replaced, not changed, so that a callback may subscribe and unsubscribe.
        self._to_all: tuple[Subscription, ...] = ()
        self._by_parent: dict[str, tuple[Subscription, ...]] = {}
        self._attached = asyncio.Event()
        """Cleared while there is no connection for a moment."""
        self._attach(websocket)

    def _attach(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._reader = asyncio.create_task(self._read(), name="kernel-reader")
        self._attached.set()

    async def detach(self) -> None:
        """Close the connection. The channel is not closed: `attach` goes on with it."""
        self._attached.clear()
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self._websocket.transport.abort()

    def attach(self, websocket: ClientConnection, kernel_id: str, sent: int, received: int) -> None:
        """Go on over another connection, after `detach`; the arguments are those of the channel.

        Does nothing if the channel was closed meanwhile.
        """
        if self.closed.done():
            websocket.transport.abort()
            return
        self.kernel_id, self.sent, self.received = kernel_id, sent, received
        self._attach(websocket)

    @property
    def is_held(self) -> bool:
        """Whether it does not read yet."""
        return not self._released.is_set()

    def release(self) -> None:
        """Start to read."""
        self._released.set()

    def subscribe(
        self, callback: Callable[[Incoming], None], parent_ids: Iterable[str] | None = None
    ) -> Subscription:
        """Call `callback` with each message that comes, in the event loop, in the order of arrival.

        Messages without a subscriber are dropped. A callback that raises is logged and gets
        no more messages; the channel and the other subscribers go on.

        Args:
            parent_ids: the ids of requests; the callback gets only the messages that answer one of
                these. By default it gets all messages.
        """
        ids = None if parent_ids is None else tuple(dict.fromkeys(parent_ids))
        subscription = Subscription(self, callback, ids)
        if self.closed.done():
            subscription.close(self.closed.result())
        elif ids is None:
            self._to_all += (subscription,)
        else:
            for parent_id in ids:
                self._by_parent[parent_id] = (*self._by_parent.get(parent_id, ()), subscription)
        return subscription

    @property
    def subscriptions(self) -> int:
        """The number of open subscriptions."""
        return len({*self._to_all, *(each for many in self._by_parent.values() for each in many)})

    async def send(self, message: Outgoing) -> None:
        """Send one message.

        Raises:
            ChannelClosed: the channel has ended.
        """
        await self.forward(encode_frame(message, BROKER_SESSION))

    async def forward(self, frame: bytes) -> None:
        """Send a message that is a frame already. Raises as `send`."""
        await self._attached.wait()
        self.sent += 1
        try:
            await self._websocket.send(frame)
        except (WebSocketException, OSError) as exc:
            raise ChannelClosed(f"the gateway closed the channel: {exc}") from exc

    async def ask_info(self) -> None:
        """Ask a kernel that nobody uses yet what it is, for later, when it may be busy. Never raises."""
        request = Outgoing("shell", "kernel_info_request", {}, internal=True)

        def keep(message: Incoming) -> None:
            if message.header.msg_type == "kernel_info_reply":
                if len(message.content) <= _MAX_INFO_BYTES:
                    self.info = message.content
                subscription.close("it was answered")

        subscription = self.subscribe(keep, [request.msg_id])
        with suppress(ChannelClosed):
            await self.send(request)

    async def send_soon(
        self,
        messages: Sequence[Outgoing],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Send messages at once, or by `spawn` if the gateway would have to read first. Never raises."""
        frames = [encode_frame(message, BROKER_SESSION) for message in messages]
        transport = self._websocket.transport
        _, limit = transport.get_write_buffer_limits()
        sending = self._forward_all(frames)
        if transport.get_write_buffer_size() + sum(map(len, frames)) < limit:
            await sending
        else:
            spawn(sending)

    async def _forward_all(self, frames: Sequence[bytes]) -> None:
        with suppress(ChannelClosed):  # `closed` tells it
            for frame in frames:
                await self.forward(frame)

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, also in an `await` (ipykernel issue 881).

        Returns when the signal was sent. The reply of the cell shows whether it had an effect.
        """
        await self._send_interrupt(self.kernel_id)
        with suppress(ChannelClosed):
            # The signal alone does not wake the kernel's event loop; any message on shell does.
            await self.send(Outgoing("shell", "kernel_info_request", {}, internal=True))

    async def close(self) -> None:
        """Close the channel. Never raises, and does not wait for the other side."""
        self._websocket.transport.abort()
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self._end(
            "the channel was closed"
        )  # the reader may have been cancelled before its first step

    def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription._parent_ids is None:
            self._to_all = tuple(each for each in self._to_all if each is not subscription)
            return
        for parent_id in subscription._parent_ids:
            left = [each for each in self._by_parent.pop(parent_id, ()) if each is not subscription]
            if left:
                self._by_parent[parent_id] = tuple(left)

    async def _read(self) -> None:
        reason = "the channel was closed"
        messages = size = kept = kept_bytes = 0
        try:
            await self._released.wait()
            async for frame in self._websocket:
                if frame == ALL_SENT:
                    if self.on_all_sent is None or await self.on_all_sent():
                        self.acknowledge(self.received)
                    await asyncio.sleep(0)
                    continue
                self.received += 1
                self._dispatch(decode_frame(frame))
                messages += 1
                size += len(frame)
                if messages >= _YIELD_MESSAGES or size >= _YIELD_BYTES:
                    kept, kept_bytes = kept + messages, kept_bytes + size
                    messages = size = 0
                    if kept >= _ACKNOWLEDGED_MESSAGES or kept_bytes >= _ACKNOWLEDGED_BYTES:
                        kept = kept_bytes = 0
                        if self.on_received is None:
                            self.acknowledge(self.received)
                        else:
                            self.on_received()
                    await asyncio.sleep(0)
            reason = "the gateway closed the channel"
        except ProtocolError as exc:
            reason = f"the sandbox sent what is not a Jupyter message: {exc}"
        except (WebSocketException, OSError) as exc:
            reason = f"the gateway closed the channel: {exc}"
            self.exit_status = _exit_status(exc)
        except Exception:
            logger.exception("the reader of a kernel's messages failed")
            reason = "a fault of the broker's own"
        finally:
            self._websocket.transport.abort()
            if self._attached.is_set():
                self._end(reason)

    def acknowledge(self, number: int) -> None:
        """Let the gateway forget the messages up to this number. It may wait for that."""
        sending = asyncio.create_task(self._send_acknowledgement(number), name="acknowledgement")
        self._acknowledging.add(sending)
        sending.add_done_callback(self._acknowledging.discard)

    async def _send_acknowledgement(self, number: int) -> None:
        # What a gateway that has ended sent last is still read.
        with suppress(WebSocketException, OSError):
            await self._websocket.send(str(number))

    def _dispatch(self, message: Incoming) -> None:
        for subscription in (*self._by_parent.get(message.parent_id, ()), *self._to_all):
            if subscription.closed.done():  # by a callback before it
                continue
            try:
                subscription._callback(message)
            except Exception:
                logger.exception("a subscriber of a kernel's messages failed")
                subscription.close("a fault of the broker's own")

    def _end(self, reason: str) -> None:
        if self.closed.done():
            return
        self.closed.set_result(reason)
        self._attached.set()  # who waits to send learns that it is closed
        for subscription in {
            *self._to_all,
            *(e for many in self._by_parent.values() for e in many),
        }:
            subscription.close(reason)


def _exit_status(closed: Exception) -> int | None:
    """The status of a kernel that has ended, if the gateway has closed the channel with it."""
    if not isinstance(closed, ConnectionClosed) or closed.rcvd is None:
        return None
    status = closed.rcvd.reason
    is_status = closed.rcvd.code == KERNEL_ENDED and status.isascii() and status.isdecimal()
    return int(status) if is_status and len(status) <= 3 else None
