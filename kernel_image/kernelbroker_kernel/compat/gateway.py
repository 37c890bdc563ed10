"""The kernel's channels in the gateway, on jupyter_server's connection class."""

from __future__ import annotations

import asyncio
import struct
import weakref
from contextlib import suppress
from itertools import accumulate
from typing import Any

import zmq
from jupyter_client.session import DELIM
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from tornado.iostream import StreamClosedError
from traitlets import Bool

from ..contract import MAX_MESSAGE_BYTES
from ..oversize import replacement

_FRAMES = "v1.kernel.websocket.jupyter.org"
"""The subprotocol in which a frame holds the parts of a message as the kernel sent them."""
_WORD = 8
_BINARY = 0x82
"""The first byte of a WebSocket frame that is a whole binary message (RFC 6455, section 5.2)."""
_LINGER_S = 0.01
"""The time that the beginning of a cell and a reply wait for the message that follows them."""
_BATCH_MESSAGES = 64
_BATCH_BYTES = 1024**2
"""The bounds of what is read from the kernel before other work of the gateway gets its turn."""


class Connection(ZMQChannelsWebsocketConnection):
    """The kernel's channels as one WebSocket, with a bound on one message.

    It has no rate limits, which drop output silently.
    """

    limit_rate = Bool(False)
    _open: weakref.WeakSet[Connection] = weakref.WeakSet()
    _passes_frames = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch: list[bytes] = []
        self._writing: asyncio.Handle | None = None
        self._lingers = False
        """Whether `_writing` is a timer, since nothing in the batch is urgent."""
        self._half_ended = b""
        """The request that has its reply or its idle status, and waits for the other one."""

    @classmethod
    def any_open(cls) -> bool:
        """Whether a client has the kernel's channels open."""
        return bool(cls._open)

    @classmethod
    def any_writing(cls) -> bool:
        """Whether a client has not yet received all that was sent to it."""
        websockets = [connection.websocket_handler.ws_connection for connection in cls._open]
        return any(ws and ws.stream and ws.stream.writing() for ws in websockets)

    def connect(self) -> Any:
        # Over TCP, Nagle's algorithm and delayed acknowledgements would cost 40 ms a cell.
        self.websocket_handler.set_nodelay(True)
        self._passes_frames = self.subprotocol == _FRAMES
        self._open.add(self)
        connected = super().connect()
        if connected is not None:
            connected.add_done_callback(self._stop_bookkeeping)
        return connected

    def disconnect(self) -> Any:
        self._open.discard(self)
        return super().disconnect()

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[bytes]) -> None:
        """Pass on a message of the kernel, and those that wait behind it, in one write.

        Each write wakes the broker, and then its client. So the first messages of a cell wait a moment
        for its output, and the reply for the end of the cell. Most cells take one write in all.
        """
        if not self._passes_frames:
            super().handle_outgoing_message(stream, outgoing_msg)
            return
        is_urgent = False
        messages = size = 0
        while True:
            # The parts are identities, a delimiter, a signature, and the message itself.
            start = outgoing_msg.index(DELIM)
            parts = outgoing_msg[start + 2 :]
            is_urgent |= self._is_urgent(stream.channel, outgoing_msg[:start], parts)
            if (length := sum(map(len, parts))) > MAX_MESSAGE_BYTES:
                parts = replacement(parts, length)
            self._batch += _frame(stream.channel, parts)
            messages += 1
            size += length
            if messages >= _BATCH_MESSAGES or size >= _BATCH_BYTES:
                break
            try:
                outgoing_msg = stream.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:  # none waits
                break
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

    def _write(self) -> None:
        self._writing = None
        batch, self._batch = self._batch, []
        websocket: Any = self.websocket_handler.ws_connection
        if websocket is not None and not websocket.is_closing():
            with suppress(StreamClosedError):
                websocket.stream.write(b"".join(batch))

    def _stop_bookkeeping(self, _connected: Any) -> None:
        """Stop the tracking of the kernel's last activity, which parses all output again."""
        with suppress(KeyError):  # the kernel has ended
            self.multi_kernel_manager.stop_watching_activity(self.kernel_id)


def _frame(channel: str, parts: list[bytes]) -> list[bytes]:
    """A WebSocket frame, in pieces. It holds a frame of the subprotocol: the number of offsets, the
    offsets, the channel, and the parts.
    """
    pieces = [channel.encode(), *parts]
    *offsets, size = accumulate(map(len, pieces), initial=_WORD * (len(pieces) + 2))
    if size < 126:
        head = bytes((_BINARY, size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", _BINARY, 126, size)
    else:
        head = struct.pack("!BBQ", _BINARY, 127, size)
    return [head, struct.pack(f"<{len(pieces) + 2}Q", len(pieces) + 1, *offsets, size), *pieces]
