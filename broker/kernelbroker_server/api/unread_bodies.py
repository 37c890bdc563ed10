"""Knows which requests have a body that is not read to its end.

Tornado closes the connection of such a request when it has been answered, and does not announce it in
the answer. `Authenticated` asks here and sends `Connection: close`, so that clients use another connection.
"""

from __future__ import annotations

from collections.abc import Awaitable
from weakref import WeakSet

from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)


class UnreadBodies:
    """The requests whose body is not read to its end, each named by its `HTTPConnection`."""

    def __init__(self) -> None:
        self._connections: WeakSet[HTTPConnection] = WeakSet()

    def __contains__(self, connection: HTTPConnection) -> bool:
        return connection in self._connections

    def track(
        self, delegate: HTTPMessageDelegate, connection: HTTPConnection
    ) -> HTTPMessageDelegate:
        """Add a new request. Returns the delegate that Tornado must call for it."""
        self._connections.add(connection)
        return _Tracker(delegate, connection, self._connections)


class _Tracker(HTTPMessageDelegate):
    """Passes a request on, and removes it from the set when its body has been read."""

    def __init__(
        self,
        delegate: HTTPMessageDelegate,
        connection: HTTPConnection,
        unread: WeakSet[HTTPConnection],
    ) -> None:
        self._delegate = delegate
        self._connection = connection
        self._unread = unread

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        return self._delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._delegate.data_received(chunk)

    def finish(self) -> None:
        self._unread.discard(self._connection)
        self._delegate.finish()

    def on_connection_close(self) -> None:
        self._delegate.on_connection_close()
