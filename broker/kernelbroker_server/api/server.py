"""The HTTP server, with bounds on what clients cost before they show a token.

A connection counts as unauthenticated until a request on it has shown a valid token. Such connections
are few, end after some seconds whatever they do (a TLS handshake, half a header, silence), and hold
little memory: headers are bounded, and handlers check the token before they read a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Iterable
from typing import Any

from tornado.http1connection import HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application

from .accepting import Acceptor

_MAX_UNAUTHENTICATED = 256
"""Connections. One more closes the oldest."""
_AUTHENTICATION_TIMEOUT_S = 15.0
"""From accepting a connection to a valid token on it."""
_IDLE_TIMEOUT_S = 75.0
"""Between requests of one connection, headers included."""
_BODY_TIMEOUT_S = 60.0
"""For a whole request body. Uploads have a timeout of their own."""
_HEADER_BYTES = 32 * 1024
"""Request line and headers: two paths of 4,096 characters, each of them percent-encoded, fit."""
_BODY_BYTES = 16 * 1024**2
"""Of a request body that Tornado reads; handlers answer 413 at less. Uploads have their own limit."""
_READ_BYTES = 64 * 1024
"""Read from a socket at once. Tornado allocates a buffer of this size for each read."""
_CHUNK_BYTES = 512 * 1024
"""Of a body that is passed to a handler at once, if the handler raises the stream's read size."""
_BUFFER_BYTES = 4 * 1024**2
"""Unread bytes of a connection, pipelined requests included; a WebSocket message fits."""
_TLS_HANDSHAKE = 0x16
"""The first byte of TLS."""
_WITHOUT_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"This broker answers without TLS: use http:// in its address.\n"
)


class UnauthenticatedConnections:
    """The connections that have not shown a token yet: bounded in number and in time."""

    def __init__(
        self, limit: int = _MAX_UNAUTHENTICATED, timeout: float = _AUTHENTICATION_TIMEOUT_S
    ) -> None:
        self._limit = limit
        self._timeout = timeout
        self._deadlines: dict[IOStream, asyncio.TimerHandle] = {}
        """In the order in which the connections were accepted."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, stream: IOStream) -> None:
        """Watch a new connection; the oldest one is closed if there are too many."""
        while len(self._deadlines) >= self._limit:
            self._close(next(iter(self._deadlines)))
        loop = asyncio.get_running_loop()
        self._deadlines[stream] = loop.call_later(self._timeout, self._close, stream)

    def discard(self, stream: IOStream | None) -> None:
        """Forget a connection: it has shown a token, or is closed."""
        if stream is not None and (deadline := self._deadlines.pop(stream, None)) is not None:
            deadline.cancel()

    def _close(self, stream: IOStream) -> None:
        self.discard(stream)
        stream.close()


class BrokerServer(HTTPServer):
    """Tornado's server with bounded connections.

    Args (of `initialize`, which Tornado calls in the place of `__init__`):
        application: what `make_application` returns.
        unauthenticated: where handlers report connections that have shown a token.
        tls: serve HTTPS with this context.
    """

    def initialize(  # type: ignore[override]
        self,
        application: Application,
        unauthenticated: UnauthenticatedConnections,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().initialize(
            application,
            ssl_options=tls,
            chunk_size=_CHUNK_BYTES,
            max_header_size=_HEADER_BYTES,
            max_body_size=_BODY_BYTES,
            max_buffer_size=_BUFFER_BYTES,
            idle_connection_timeout=_IDLE_TIMEOUT_S,
            body_timeout=_BODY_TIMEOUT_S,
        )
        self._unauthenticated = unauthenticated
        self._is_plain = tls is None

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        for each in sockets:
            acceptor = Acceptor(each, self._handle_connection, answers=self._is_plain)
            self._sockets[each.fileno()] = each
            self._handlers[each.fileno()] = acceptor.stop

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        stream.read_chunk_size = _READ_BYTES
        self._unauthenticated.add(stream)
        if self._is_plain:
            _refuse_tls(stream)
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        assert isinstance(server_conn, HTTP1ServerConnection)
        self._unauthenticated.discard(server_conn.stream)
        super().on_close(server_conn)


def _refuse_tls(stream: IOStream) -> None:
    """Answer the beginning of TLS at once. Tornado would wait for the end of a header."""
    read = stream.read_from_fd

    def read_first(buffer: bytearray | memoryview) -> int | None:
        size = read(buffer)
        if size is None:
            return None
        del stream.read_from_fd  # the method is that of the class again
        if size and buffer[0] == _TLS_HANDSHAKE:
            with contextlib.suppress(OSError):
                stream.socket.send(_WITHOUT_TLS)
            raise ConnectionResetError(errno.ECONNRESET, "a client began TLS")
        return size

    stream.read_from_fd = read_first  # type: ignore[assignment, method-assign]
