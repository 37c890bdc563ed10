"""Refuses brokers that have lost this sandbox to another one.

Several brokers may share a store. One that goes on with the sandboxes of another one says a higher epoch
with each request. From the first such request on, requests with a lower epoch are refused, and their
connections are closed: a broker that was only paused does nothing here any more when it wakes up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from .contract import EPOCH_HEADER

_REFUSAL = b"HTTP/1.1 409 Conflict\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class FencedServer(HTTPServer):
    """The gateway's server.

    Attributes:
        epoch: the highest that a broker has said.
    """

    epoch = 0

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self._epochs: WeakKeyDictionary[IOStream, int] = WeakKeyDictionary()
        """Of the connections, also those that carry another protocol now."""

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        self._epochs[stream] = 0
        super().handle_stream(stream, address)

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        stream = request_conn.stream  # type: ignore[attr-defined]
        start = super().start_request
        return _Fenced(
            lambda: start(server_conn, request_conn), lambda epoch: self._admit(stream, epoch)
        )

    def _admit(self, stream: IOStream, epoch: int) -> bool:
        """Whether a request with this epoch is answered. Otherwise its connection is closed."""
        if epoch < self.epoch:
            stream.write(_REFUSAL)
            stream.close()
            return False
        self._epochs[stream] = epoch
        if epoch > self.epoch:
            self.epoch = epoch
            for each, said in list(self._epochs.items()):
                if said < epoch:
                    each.close()
        return True


class _Fenced(HTTPMessageDelegate):
    """A request, which is passed on if its broker is admitted."""

    def __init__(
        self, start: Callable[[], HTTPMessageDelegate], admit: Callable[[int], bool]
    ) -> None:
        self._start = start
        self._admit = admit
        self._delegate: HTTPMessageDelegate | None = None

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        said = headers.get(EPOCH_HEADER, "0")
        if not self._admit(int(said) if said.isascii() and said.isdigit() else 0):
            return None
        self._delegate = self._start()
        return self._delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return None if self._delegate is None else self._delegate.data_received(chunk)

    def finish(self) -> None:
        if self._delegate is not None:
            self._delegate.finish()

    def on_connection_close(self) -> None:
        if self._delegate is not None:
            self._delegate.on_connection_close()
