"""The kernel's channels in the gateway, on jupyter_server's connection class."""

from __future__ import annotations

import struct
import weakref
from contextlib import suppress
from itertools import accumulate
from typing import Any

from jupyter_client.session import DELIM
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from traitlets import Bool

from ..contract import MAX_MESSAGE_BYTES
from ..oversize import replacement

_FRAMES = "v1.kernel.websocket.jupyter.org"
"""The subprotocol in which a frame holds the parts of a message as the kernel sent them."""
_WORD = 8


class Connection(ZMQChannelsWebsocketConnection):
    """The kernel's channels as one WebSocket, with a bound on one message.

    It has no rate limits, which drop output silently.
    """

    limit_rate = Bool(False)
    _open: weakref.WeakSet[Connection] = weakref.WeakSet()
    _passes_frames = False

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
        """Pass on a message of the kernel. Six of them come for each cell, so the parts are not parsed.

        The stock method is as slow again: it looks each time for rate limits and other subprotocols.
        """
        if not self._passes_frames:
            super().handle_outgoing_message(stream, outgoing_msg)
            return
        # The parts are identities, a delimiter, a signature, and the message itself.
        parts = outgoing_msg[outgoing_msg.index(DELIM) + 2 :]
        size = sum(map(len, parts))
        if size > MAX_MESSAGE_BYTES:
            parts = replacement(parts, size)
        self.websocket_handler.write_message(_frame(stream.channel, parts), binary=True)

    def _stop_bookkeeping(self, _connected: Any) -> None:
        """Stop the tracking of the kernel's last activity, which parses all output again."""
        with suppress(KeyError):  # the kernel has ended
            self.multi_kernel_manager.stop_watching_activity(self.kernel_id)


def _frame(channel: str, parts: list[bytes]) -> bytes:
    """A frame of the subprotocol: the number of offsets, the offsets, the channel, and the parts."""
    pieces = [channel.encode(), *parts]
    offsets = accumulate(map(len, pieces), initial=_WORD * (len(pieces) + 2))
    return b"".join([struct.pack(f"<{len(pieces) + 2}Q", len(pieces) + 1, *offsets), *pieces])
