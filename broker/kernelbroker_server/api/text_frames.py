"""Sends messages of a WebSocket: several in one write, and to a client that may have left.

Tornado sends each message with a write of its own, which wakes the client, and in a task of its own. A
small cell has its first event and its last one at the same time.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Any

from tornado.websocket import WebSocketClosedError, WebSocketHandler

_TEXT = 0x81
"""The first byte of a frame that is a whole text message (RFC 6455, section 5.2)."""
_WRITE_BYTES = 256 * 1024
"""More is written in pieces, so that a slow client makes its sender wait."""


class WebSocket(WebSocketHandler):
    """A client may leave while a message is written. Nobody may wait for that any more: it is no error."""

    def write_message(
        self, message: bytes | str | dict[str, Any], binary: bool = False
    ) -> asyncio.Future[None]:
        sent = super().write_message(message, binary)
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved
        return sent


async def write_texts(handler: WebSocketHandler, texts: Iterable[bytes]) -> None:
    """Send each text as a message, and wait until the socket has taken them.

    The handler's messages must not be compressed.

    Raises:
        WebSocketClosedError, StreamClosedError
    """
    pieces: list[bytes] = []
    size = 0
    for text in texts:
        pieces += (_head(len(text)), text)
        size += len(text)
        if size >= _WRITE_BYTES:
            await _write(handler, pieces)
            pieces, size = [], 0
    if pieces:
        await _write(handler, pieces)


async def _write(handler: WebSocketHandler, pieces: list[bytes]) -> None:
    connection = handler.ws_connection
    if connection is None or connection.is_closing() or connection.stream is None:
        raise WebSocketClosedError
    await connection.stream.write(b"".join(pieces))


def _head(size: int) -> bytes:
    if size < 126:
        return bytes((_TEXT, size))
    if size < 1 << 16:
        return struct.pack("!BBH", _TEXT, 126, size)
    return struct.pack("!BBQ", _TEXT, 127, size)
