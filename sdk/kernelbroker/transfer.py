"""One HTTP request to the broker, streamed both ways, through the standard library.

What blocks is done in a thread, a piece at a time, so nothing is read or sent that nobody waits for.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, TypeVar
from urllib.parse import urlsplit

from .discovery import Address
from .protocol.errors import ConnectionLost
from .rest import MAX_BODY, connection_to, refusal

T = TypeVar("T")

CHUNK = 4 * 2**20
"""Bytes that are moved in one go; each costs a change of threads."""


class Transfer:
    """A request: `begin`, `send` its body if it has one, `answer`, and `read` the answer's body.

    Leaving the `async with` hangs up. Cancelling any of it leaves nothing behind.

    Attributes:
        status, headers: of the answer.
        is_deaf: the broker has answered before it had all of the body; `answer` tells why.
    """

    def __init__(self, address: Address, method: str, path: str, timeout: float) -> None:
        self.status = 0
        self.is_deaf = False
        self.headers = http.client.HTTPMessage()
        self._address = address
        self._method = method
        self._path = urlsplit(address.url).path + path
        self._connection = connection_to(address, timeout)
        self._response: http.client.HTTPResponse | None = None
        self._is_chunked = False
        self._buffer: memoryview | None = None

    async def begin(self, headers: dict[str, str] | None = None, *, chunked: bool = False) -> None:
        """Send the head; with `chunked` a body of unknown length follows. Raises ConnectionFailed."""
        self._is_chunked = chunked

        def work() -> None:
            connection = self._connection
            connection.putrequest(self._method, self._path, skip_accept_encoding=True)
            lines = self._address.headers | (headers or {})
            if chunked:
                lines["Transfer-Encoding"] = "chunked"
            for name, value in lines.items():
                connection.putheader(name, value)
            connection.endheaders()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        try:
            await self._in_thread(work)
        except (OSError, http.client.HTTPException) as exc:
            raise self._address.unreachable(exc) from exc

    async def send(self, data: bytes) -> int:
        """Send a piece of the body, unless the broker takes no more (`is_deaf`); returns its size."""
        return await self.send_from(lambda: data)

    async def send_from(self, produce: Callable[[], bytes]) -> int:
        """The same, with a piece that is made in the thread. Raises what `produce` raises."""

        def work() -> int:
            data = produce()
            if not isinstance(data, bytes | bytearray | memoryview):
                raise TypeError("what is uploaded is bytes: open the file in binary mode")
            if not data:
                return 0
            pieces = [b"%x\r\n" % len(data), data, b"\r\n"] if self._is_chunked else [data]
            try:
                for piece in pieces:
                    self._connection.send(piece)
            except ConnectionError:
                self.is_deaf = True
            except OSError as exc:
                raise ConnectionLost(f"the upload broke off: {exc}") from exc
            return len(data)

        return await self._in_thread(work)

    async def send_file(self, file: IO[bytes], limit: int | None = None) -> int:
        """The same, with the next piece of a file, straight from it where the system can do that.

        Args:
            limit: of bytes, for a body whose length has been told.
        """
        if self._is_chunked:
            return await self.send_from(lambda: file.read(CHUNK))

        def work() -> int:
            try:
                count = CHUNK if limit is None else min(limit, CHUNK)
                return self._connection.sock.sendfile(file, file.tell(), count)
            except ConnectionError:
                self.is_deaf = True
                return CHUNK
            except OSError as exc:
                raise ConnectionLost(f"the upload broke off: {exc}") from exc

        return await self._in_thread(work)

    async def answer(self, *, refused: bool = True) -> int:
        """End the body, and wait for the answer's head; returns the status.

        Raises:
            RequestError: the broker refused, unless `refused` is false.
            ConnectionLost: no answer came.
        """

        def work() -> http.client.HTTPResponse:
            if self._is_chunked and not self.is_deaf:
                with suppress(ConnectionError):
                    self._connection.send(b"0\r\n\r\n")
            return self._connection.getresponse()

        try:
            self._response = response = await self._in_thread(work)
            self.status, self.headers = response.status, response.headers
            if self.status < 400 or not refused:
                return self.status
            body = await self._in_thread(lambda: response.read(MAX_BODY))
        except (OSError, http.client.HTTPException) as exc:
            raise ConnectionLost(f"the broker did not answer: {exc!r}") from exc
        raise refusal(self._address, self.status, body)

    async def read(self) -> bytes:
        """The next piece of the answer's body; empty at its end, wherever that is."""
        return await self._read(lambda response: response.read(CHUNK))

    async def read_all(self) -> bytes:
        """All of the answer's body."""
        body = bytearray()
        while piece := await self.read():
            body += piece
        return bytes(body)

    async def save(self, file: IO[bytes]) -> int:
        """Write the next piece to a file; returns its size, 0 at the end. Raises what `file` raises."""
        if self._buffer is None:  # one for all pieces: new memory costs more than the copy into it
            self._buffer = memoryview(bytearray(CHUNK))
        buffer = self._buffer
        size = await self._read(lambda response: response.readinto(buffer))
        if size:
            await self._in_thread(lambda: _write_all(file, buffer[:size]))
        return size

    async def read_available(self) -> bytes:
        """The same, without waiting for more than something."""
        return await self._read(lambda response: response.read1(CHUNK))

    async def read_into(self, buffer: memoryview) -> int:
        """Fill the buffer with what comes; returns how much that was, less only where it ended."""

        def fill(response: http.client.HTTPResponse) -> int:
            done = 0
            while done < len(buffer) and (size := response.readinto(buffer[done:])):
                done += size
            return done

        return await self._read(fill)

    async def _read(self, use: Callable[[http.client.HTTPResponse], T]) -> T:
        response = self._response
        assert response is not None, "`answer` comes first"

        def work() -> T:
            try:
                return use(response)
            except (OSError, http.client.HTTPException) as exc:
                raise ConnectionLost(f"the download broke off: {exc}") from exc

        return await self._in_thread(work)

    async def __aenter__(self) -> Transfer:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        running = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if self._connection.sock is not None:  # wakes the thread
                with suppress(OSError):
                    self._connection.sock.shutdown(socket.SHUT_RDWR)
            await asyncio.wait([running])
            running.exception()  # retrieved
            raise


def _write_all(file: IO[bytes], data: memoryview) -> None:
    while data:  # an unbuffered file may take less
        data = data[file.write(data) :]
