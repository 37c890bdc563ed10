"""A connection that was taken from Tornado before the request's body was read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

from kernelbroker.protocol.errors import BadRequest
from tornado.httputil import HTTPConnection, HTTPHeaders, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import RequestHandler

_LINGER_S = 2.0
"""How long a client that was answered early may go on sending, so that it can read why."""
_LINGER_BYTES = 256 * 1024


class Taken(HTTPConnection):
    """What the handler answers on, in Tornado's place.

    Attributes:
        begin: what has come of the body by now.
        socket: gives the rest of it. It does not block.
    """

    def __init__(self, taken: socket.socket, begin: bytes) -> None:
        self.begin = begin
        self.socket = taken
        self._answer = bytearray()

    def write_headers(
        self,
        start_line: RequestStartLine | ResponseStartLine,
        headers: HTTPHeaders,
        chunk: bytes | None = None,
    ) -> asyncio.Future[None]:
        assert isinstance(start_line, ResponseStartLine)
        lines = [f"HTTP/1.1 {start_line.code} {start_line.reason}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.get_all()]
        self._answer += "\r\n".join([*lines, "", ""]).encode("latin-1")
        return self.write(chunk or b"")

    def write(self, chunk: bytes) -> asyncio.Future[None]:
        self._answer += chunk
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    def set_close_callback(self, callback: object) -> None:
        """Who reads from the socket sees its end."""

    def finish(self) -> None:
        """`take` sends it."""

    async def send(self) -> None:
        """Send the answer, and read what is still coming: a reset would take the answer away again."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_LINGER_S):
                await loop.sock_sendall(self.socket, self._answer)
                self.socket.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(self.socket, _LINGER_BYTES):
                    pass


@contextlib.asynccontextmanager
async def take(handler: RequestHandler, size: int, silence: float) -> AsyncIterator[Taken]:
    """The connection of a request with a body of `size` bytes, in `prepare`.

    Within the block the request is to be answered, as ever, by the handler; at its end that is sent.

    Raises:
        BadRequest: the client has gone already.
    """
    detached: Any = handler.request.connection
    if detached.stream.closed():
        raise BadRequest("the body never came")
    stream: IOStream = detached.detach()
    with stream.socket.dup() as connection:
        begin = b""
        try:
            if handler.request.headers.get("Expect", "").lower() == "100-continue":
                await stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            async with asyncio.timeout(silence):
                begin = await stream.read_bytes(size, partial=True)  # what Tornado has read, too
        except (StreamClosedError, TimeoutError):
            pass  # who reads on will see
        finally:
            stream.close()
        handler.request.connection = taken = Taken(connection, begin)
        yield taken
        await taken.send()
