"""Runs an ASGI application for one request of a Tornado handler.

The MCP SDK serves HTTP as an ASGI application (https://asgi.readthedocs.io/en/latest/specs/www.html). The
handler has read the whole body. The answer is streamed: the application waits until the socket has taken
each piece. When the client disconnects, the application is told, and the rest of its answer is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

Message: TypeAlias = MutableMapping[str, Any]
Application: TypeAlias = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]

_OWN_HEADERS = frozenset({"connection", "transfer-encoding", "server", "date"})
"""Tornado writes these itself."""


class AsgiExchange:
    """One request and its answer.

    Args:
        handler: writes the answer. It must call `disconnected` when its connection is closed.
        body: of the request.
        extra: further keys of the scope.
    """

    def __init__(self, handler: RequestHandler, body: bytes, extra: dict[str, Any]) -> None:
        self._handler = handler
        self._unread: bytes | None = body
        self._extra = extra
        self._over = asyncio.Event()
        """The client has disconnected, or has the whole answer."""

    def disconnected(self) -> None:
        """Tell the application that the client has closed the connection."""
        self._over.set()

    async def run(self, application: Application) -> None:
        """Run the application to its end."""
        try:
            await application(self._scope(), self._receive, self._send)
        finally:
            self._over.set()

    def _scope(self) -> dict[str, Any]:
        request = self._handler.request
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in request.headers.get_all()
        ]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.protocol,
            "path": request.path,
            "raw_path": request.path.encode("latin-1", "replace"),
            "root_path": "",
            "query_string": request.query.encode("latin-1", "replace"),
            "headers": headers,
            "client": (request.remote_ip, 0),
            "server": None,
            **self._extra,
        }

    async def _receive(self) -> Message:
        if self._unread is not None:
            body, self._unread = self._unread, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._over.is_set():
            return
        handler = self._handler
        try:
            if message["type"] == "http.response.start":
                handler.set_status(message["status"])
                handler.clear_header("Content-Type")  # Tornado's default
                for name, value in message.get("headers", ()):
                    if (key := bytes(name).decode("latin-1")).lower() not in _OWN_HEADERS:
                        handler.set_header(key, bytes(value).decode("latin-1"))
                return
            if body := message.get("body", b""):
                handler.write(bytes(body))
            if message.get("more_body", False):
                await handler.flush()
            else:
                handler.finish()
                self._over.set()
        except StreamClosedError:
            self._over.set()
