"""Relays messages from the kernel to the broker. It outlives the connections, as the kernel does.

Messages are sent as frames of the subprotocol `v1.kernel.websocket.jupyter.org`, and kept until the broker
acknowledges them. A broker that goes on with the kernel gets those again that it asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Protocol

import zmq
from jupyter_client.session import DELIM

from .contract import ALL_SENT, MAX_MESSAGE_BYTES
from .outbox import Outbox
from .oversize import replacement

_WORD = 8
_TEXT, _BINARY = 0x81, 0x82
"""The first byte of a WebSocket frame that is a whole message (RFC 6455, section 5.2)."""
_LINGER_S = 0.01
"""The time that the beginning of a cell and a reply wait for the message that follows them."""
_ACKNOWLEDGE_S = 5.0
"""The time that a broker has to store some of a dead kernel's messages, until the gateway gives it up."""
_BATCH_MESSAGES = 64
_BATCH_BYTES = 1024**2
"""The bounds of what is read from the kernel before other work of the gateway gets its turn."""


class Channel(Protocol):
    """A ZMQ stream of one of the kernel's channels."""

    channel: str
    socket: Any

    def on_recv_stream(self, callback: Callable[[Any, list[bytes]], None]) -> None: ...
    def stop_on_recv(self) -> None: ...
    def close(self) -> None: ...


class Relay:
    """The messages of one kernel, for at most one connection at a time.

    Attributes:
        channels: the kernel's, by name.
        received: the number of messages that the kernel was sent.
        is_held: the kernel's output is not read, since too much is not acknowledged.
    """

    def __init__(self, channels: dict[str, Channel]) -> None:
        self.channels = channels
        self.received = 0
        self.is_held = False
        self._changed = asyncio.Event()
        """Set at each acknowledgement, and when a broker comes or goes."""
        self._is_wanted = True
        self._is_finished = False
        """Nothing follows."""
        self._is_told = False
        """The present connection was told so."""
        self._outbox = Outbox()
        self._send: Callable[[bytes], None] | None = None
        self._batch: list[bytes] = []
        self._writing: asyncio.Handle | None = None
        self._lingers = False
        """Whether `_writing` is a timer, since nothing in the batch is urgent."""
        self._half_ended = b""
        """The request that has its reply or its idle status, and waits for the other one."""
        for channel in channels.values():
            channel.on_recv_stream(self.receive)

    def connect(self, send: Callable[[bytes], None]) -> None:
        """Send what comes from now on over this connection, in place of the one before."""
        self._send = send
        self._is_told = False
        self._batch.clear()
        self._changed.set()

    def join(self, send: Callable[[bytes], None], after: int | None) -> None:
        """Go on with a broker that has everything up to the message `after`; None: it needs nothing.

        It first gets the number of messages that the kernel was sent, and that of the first one to follow.
        """
        self.connect(send)
        self.acknowledge(self._outbox.last if after is None else after)
        send(_text(json.dumps({"received": self.received, "first": self._outbox.first})))
        send(b"".join(self._outbox.kept()))
        self._tell_end()

    def disconnect(self, send: Callable[[bytes], None]) -> None:
        """Keep what comes from now on, if this is the present connection."""
        if self._send == send:
            self._send = None
            self._changed.set()

    def drain(self) -> None:
        """Pass on all that waits of a kernel that has ended, even if too much is not acknowledged."""
        for channel in self.channels.values():
            with contextlib.suppress(zmq.ZMQError):  # nothing waits any more
                while True:
                    self.receive(channel, channel.socket.recv_multipart(zmq.NOBLOCK))
        if self._writing is not None:
            self._writing.cancel()
        self._write()

    def finish(self) -> None:
        """Pass on all that waits, and tell each broker that nothing follows: the kernel ends."""
        if not self._is_finished:
            for channel in self.channels.values():
                channel.stop_on_recv()
            self.drain()
            self._is_finished = True
            self._tell_end()

    def forsake(self) -> None:
        """Let nobody wait for an acknowledgement: the broker ends the kernel itself."""
        self._is_wanted = False
        self._changed.set()

    async def delivered(self, alone: float) -> None:
        """Wait until a broker has stored everything that the kernel has sent, and pass on nothing further.

        Each acknowledgement, and each broker that comes, has its time anew.

        Args:
            alone: seconds to wait for the next broker.
        """
        while True:
            if not self.is_held:
                self.finish()
            if self.is_delivered:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(alone if self._send is None else _ACKNOWLEDGE_S):
                    await self._changed.wait()
            except TimeoutError:
                return

    @property
    def is_delivered(self) -> bool:
        """Whether everything was sent and is acknowledged, or need not be."""
        is_acknowledged = self._outbox.first > self._outbox.last
        return not self._is_wanted or (self._is_finished and is_acknowledged)

    def end(self) -> None:
        """Pass on what the kernel has sent, and close its channels: it has ended."""
        self.drain()
        for channel in self.channels.values():
            channel.close()

    def acknowledge(self, number: int) -> None:
        """Forget the messages up to this number."""
        self._outbox.acknowledge(number)
        self._changed.set()
        if self.is_held and not self._outbox.is_full:
            self.is_held = False
            if not self._is_finished:
                self.channels["iopub"].on_recv_stream(self.receive)

    def receive(self, channel: Channel, message: list[bytes]) -> None:
        """Pass on a message of the kernel, and those that wait behind it, in one write.

        Each write wakes the broker, and then its client. So the first messages of a cell wait a moment
        for its output, and the reply for the end of the cell. Most cells take one write in all.
        """
        is_urgent = False
        messages = size = 0
        while True:
            # The parts are identities, a delimiter, a signature, and the message itself.
            start = message.index(DELIM)
            parts = message[start + 2 :]
            is_urgent |= self._is_urgent(channel.channel, message[:start], parts)
            if (length := sum(map(len, parts))) > MAX_MESSAGE_BYTES:
                parts = replacement(parts, length)
            frame = _frame(channel.channel, parts)
            self._outbox.add(frame)
            self._batch += frame
            messages += 1
            size += length
            if messages >= _BATCH_MESSAGES or size >= _BATCH_BYTES:
                break
            try:
                message = channel.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:  # none waits
                break
        if self._outbox.is_full and not self.is_held:
            self.is_held = True
            self.channels["iopub"].stop_on_recv()
        self._write_soon(is_urgent)

    def _is_urgent(self, channel: str, identities: list[bytes], parts: list[bytes]) -> bool:
        """Whether a message must be passed on at once: all but those that another one follows."""
        topic = identities[0] if channel == "iopub" and identities else b""
        if channel == "shell" or (topic.endswith(b".status") and b"idle" in parts[3]):
            request = parts[1]
            is_ended = request == self._half_ended
            self._half_ended = b"" if is_ended else request
            return is_ended
        return not topic.endswith((b".status", b".execute_input"))

    def _write_soon(self, is_urgent: bool) -> None:
        if self._writing is not None:
            if not is_urgent or not self._lingers:
                return
            self._writing.cancel()
        loop = asyncio.get_running_loop()
        self._lingers = not is_urgent
        # Not at once: messages of the other channels may be there as well.
        self._writing = (
            loop.call_soon(self._write) if is_urgent else loop.call_later(_LINGER_S, self._write)
        )

    def _tell_end(self) -> None:
        if self._is_finished and not self._is_told and self._send is not None:
            self._is_told = True
            self._send(_text(ALL_SENT))

    def _write(self) -> None:
        self._writing = None
        batch, self._batch = self._batch, []
        if self._send is not None and batch:
            self._send(b"".join(batch))


def _frame(channel: str, parts: list[bytes]) -> list[bytes]:
    """A WebSocket frame, in pieces. It holds a frame of the subprotocol: the number of offsets, the
    offsets, the channel, and the parts.
    """
    pieces = [channel.encode(), *parts]
    *offsets, size = accumulate(map(len, pieces), initial=_WORD * (len(pieces) + 2))
    words = struct.pack(f"<{len(pieces) + 2}Q", len(pieces) + 1, *offsets, size)
    return [_head(_BINARY, size), words, *pieces]


def _text(text: str) -> bytes:
    """A WebSocket frame with a text."""
    content = text.encode()
    return _head(_TEXT, len(content)) + content


def _head(kind: int, size: int) -> bytes:
    """The head of a WebSocket frame."""
    if size < 126:
        return bytes((kind, size))
    if size < 1 << 16:
        return struct.pack("!BBH", kind, 126, size)
    return struct.pack("!BBQ", kind, 127, size)
