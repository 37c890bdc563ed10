"""HTTP requests to the broker, through the standard library.

`HTTPRequest` streams a request and its answer; `call` is a request and an answer of JSON. The event loop
connects and waits for answers; a thread sends and receives what is there, one piece at a time. A cancelled
call shuts the socket down, so its thread ends at once.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from random import SystemRandom
from types import TracebackType
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from .discovery import Address
from .http_connections import Connection
from .http_errors import error_from_answer
from .protocol.codec import decode_json
from .protocol.errors import ConnectionFailed, ConnectionLost, Unauthorized, Unavailable

_SHORT, _LONG = 8, 1_000
"""Threads for what does not wait for the network, and for what may: sending and receiving bodies."""
T = TypeVar("T")

CHUNK = 4 * 2**20
"""Bytes that are moved at once; each chunk costs a change of threads."""
MAX_BODY = 16 * 2**20
"""Bytes that are read of an answer of JSON."""
_NO_CONTENT = 204
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Sent twice, they do the same as once."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
"""Before a request is sent again; it doubles each time."""


async def call(
    address: Address,
    method: str,
    path: str,
    timeout: float,
    body: bytes | None = None,
    extra_headers: dict[str, str] | None = None,
) -> Any:
    """Send a request and return the JSON of the answer; None if the answer has no body.

    What has reached no broker, or what may be done twice and was refused as `Unavailable`, is sent again,
    `address.retries` times.

    Args:
        timeout: seconds to wait for the connection, and then for each part of the answer.
        body: JSON, or None.

    Raises:
        ConnectionFailed: no answer in time, or the answer does not come from a broker.
        RequestError: the broker refused the request.
    """
    headers = dict(extra_headers or {})
    if body is not None:
        headers |= {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    elif method != "GET":
        headers["Content-Length"] = "0"
    token, left, pause, new = address.token, address.retries, _FIRST_PAUSE_S, False
    while True:
        request = HTTPRequest(address, method, path, timeout, new=new)
        try:
            async with request:
                await request.begin(headers, body=body)
                status = await request.answer()
                answer = await request.read_all(MAX_BODY)
            break
        except Unauthorized:
            if not address.renew(token):
                raise
            token = address.token
        except ConnectionLost as exc:
            if not request.is_reused or method not in _REPEATABLE:
                raise address.unreachable(exc) from exc
            new = True  # the broker has closed the idle connection
        except (ConnectionFailed, Unavailable) as exc:
            was_refused = isinstance(exc, Unavailable) and method in _REPEATABLE
            if not left or not (was_refused or not request.is_sent):
                raise
            await asyncio.sleep(pause * SystemRandom().uniform(0.5, 1.0))
            left, pause = left - 1, min(2 * pause, _LONGEST_PAUSE_S)
    if status == _NO_CONTENT:
        return None
    try:
        # An answer that is cut in its head looks to `http.client` like one without a body.
        return decode_json(answer)
    except msgspec.DecodeError as exc:
        raise address.unreachable(f"the answer to {path} is not JSON") from exc


class HTTPRequest:
    """One request: `begin`, then `send` the body if there is one, `answer`, and `read` its body.

    Leaving the `async with` closes the connection, or keeps it for the next request if the answer was read
    to its end. Any await may be cancelled; no thread stays behind.

    Args:
        timeout: seconds to wait for the connection, and then for each part of the answer.
        new: use no connection of an earlier request.

    Attributes:
        is_sent: the head was sent, with the body that was given to `begin`.
        is_reused: the connection is one of an earlier request.
        status, headers: of the answer.
        was_answered_early: the broker has answered before it got the whole body; `answer` has the reason.
    """

    def __init__(
        self, address: Address, method: str, path: str, timeout: float, *, new: bool = False
    ) -> None:
        self.is_sent = self.is_reused = False
        self.status = 0
        self.was_answered_early = False
        self.headers = http.client.HTTPMessage()
        self._new = new
        self._address = address
        self._method = method
        self._token = address.token
        self._path = urlsplit(address.url).path + path
        self._timeout = timeout
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._is_chunked = False
        self._buffer: memoryview | None = None

    async def begin(
        self,
        headers: dict[str, str] | None = None,
        *,
        body: bytes | None = None,
        chunked: bool = False,
    ) -> None:
        """Connect and send the head, with the body if it is given.

        With `chunked` a body of unknown length follows.

        Raises:
            ConnectionFailed: the broker cannot be reached.
        """
        self._is_chunked = chunked
        lines = self._address.headers | (headers or {})
        if chunked:
            lines["Transfer-Encoding"] = "chunked"

        def work(connection: Connection) -> None:
            connection.prepare()
            self._socket = connection.http.sock
            request = connection.http
            request.putrequest(
                self._method, connection.target + self._path, skip_accept_encoding=True
            )
            for name, value in (lines | connection.headers).items():
                request.putheader(name, value)
            request.endheaders(body)

        while not self.is_sent:
            try:
                connection = await self._address.connections.get(self._timeout, new=self._new)
                self._connection, self._socket = connection, connection.http.sock
                self._socket.settimeout(self._timeout)
                self.is_reused = connection.is_used
                is_long = bool(body) or (self._address.is_tls and not connection.is_used)
                threads = _LONG if is_long else _SHORT
                await self._in_thread(lambda: work(connection), threads)  # noqa: B023 - it is awaited
                self.is_sent = True
            except (OSError, http.client.HTTPException) as exc:
                if self._connection is None or not self._connection.is_used:
                    raise self._address.unreachable(exc) from exc
                self._connection.http.close()  # the broker had closed it
                self._connection, self._new = None, True

    async def send(self, data: bytes) -> int:
        """Send a piece of the body, unless the broker has answered early; returns its size."""
        return await self.send_from(lambda: data)

    async def send_from(self, produce: Callable[[], bytes]) -> int:
        """Send a piece that `produce` makes in the thread. Raises what `produce` raises."""

        def work() -> int:
            data = produce()
            if not isinstance(data, bytes | bytearray | memoryview):
                raise TypeError("the data must be bytes: open the file in binary mode")
            if not data:
                return 0
            pieces = [b"%x\r\n" % len(data), data, b"\r\n"] if self._is_chunked else [data]
            try:
                for piece in pieces:
                    self._http.send(piece)
            except ConnectionError:
                self.was_answered_early = True
            except OSError as exc:
                raise ConnectionLost(f"the upload broke off ({exc}): try it again") from exc
            return len(data)

        return await self._in_thread(work)

    async def send_file(self, file: IO[bytes], limit: int | None = None) -> int:
        """Send the next piece of a file, with `sendfile` if the system has it. Returns its size.

        Args:
            limit: of bytes, for a body whose length was announced.
        """
        if self._is_chunked:
            return await self.send_from(lambda: file.read(CHUNK))

        def work() -> int:
            try:
                count = CHUNK if limit is None else min(limit, CHUNK)
                return self._http.sock.sendfile(file, file.tell(), count)
            except ConnectionError:
                self.was_answered_early = True
                return CHUNK
            except OSError as exc:
                raise ConnectionLost(f"the upload broke off ({exc}): try it again") from exc

        return await self._in_thread(work)

    async def answer(self, *, may_refuse: bool = False) -> int:
        """End the body, and wait for the head of the answer; returns the status.

        Raises:
            RequestError: the broker refused the request, unless `may_refuse`.
            ConnectionLost: no answer came.
        """
        try:
            if self._is_chunked and not self.was_answered_early:
                with suppress(ConnectionError):
                    await self._in_thread(lambda: self._http.send(b"0\r\n\r\n"))
            await self._arrival()
            self._response = response = await self._in_thread(self._http.getresponse, _SHORT)
            self.status, self.headers = response.status, response.headers
            if self.status < 400 or may_refuse:
                return self.status
            body = await self._in_thread(lambda: response.read(MAX_BODY))
        except (OSError, http.client.HTTPException) as exc:
            raise ConnectionLost(f"the broker did not answer: {exc!r}") from exc
        error = error_from_answer(self._address, self.status, body)
        if isinstance(error, Unauthorized):
            self._address.renew(
                self._token
            )  # for the next request, if this one cannot be sent again
        raise error

    async def read(self) -> bytes:
        """The next piece of the answer's body; empty at its end."""
        return await self._read(lambda response: response.read(CHUNK))

    async def read_all(self, limit: int = MAX_BODY) -> bytes:
        """The answer's body, up to `limit` bytes."""
        return await self._read(lambda response: response.read(limit))

    async def read_available(self) -> bytes:
        """Return the part of the body that has arrived, at least one byte; empty at its end."""
        response, sock = self._response, self._socket
        assert response is not None and sock is not None, "`answer` comes first"
        if not _has_data(response, sock):
            try:
                await self._arrival()
            except OSError as exc:
                raise ConnectionLost(f"the download broke off ({exc}): try it again") from exc
        return await self._read(lambda response: response.read1(CHUNK), _SHORT)

    async def read_into(self, buffer: memoryview) -> int:
        """Fill the buffer; returns the number of bytes, which is less only at the body's end."""

        def fill(response: http.client.HTTPResponse) -> int:
            done = 0
            while done < len(buffer) and (size := response.readinto(buffer[done:])):
                done += size
            return done

        return await self._read(fill)

    async def save(self, file: IO[bytes]) -> int:
        """Write the next piece to a file; returns its size, 0 at the end. Raises what `file` raises."""
        if self._buffer is None:  # One for all pieces: new memory costs more than the copy into it.
            self._buffer = memoryview(bytearray(CHUNK))
        buffer = self._buffer
        size = await self._read(lambda response: response.readinto(buffer))
        if size:
            await self._in_thread(lambda: _write_all(file, buffer[:size]))
        return size

    async def _read(self, use: Callable[[http.client.HTTPResponse], T], threads: int = _LONG) -> T:
        response = self._response
        assert response is not None, "`answer` comes first"

        def work() -> T:
            try:
                return use(response)
            except (OSError, http.client.HTTPException) as exc:
                raise ConnectionLost(f"the download broke off ({exc}): try it again") from exc

        return await self._in_thread(work, threads)

    async def __aenter__(self) -> HTTPRequest:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection, response = self._connection, self._response
        if connection is None:
            return
        is_read = response is not None and response.isclosed() and not response.will_close
        if is_read and not self.was_answered_early:
            self._address.connections.put_back(connection)
            return
        if response is not None:
            response.close()
        connection.http.close()

    @property
    def _http(self) -> http.client.HTTPConnection:
        assert self._connection is not None, "`begin` comes first"
        return self._connection.http

    async def _arrival(self) -> None:
        """Wait until something can be read. Raises TimeoutError."""
        sock = self._socket
        assert sock is not None
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(sock, arrived.set)
        try:
            async with asyncio.timeout(self._timeout):
                await arrived.wait()
        except TimeoutError:
            raise TimeoutError("timed out") from None
        finally:
            loop.remove_reader(sock)

    async def _in_thread(self, work: Callable[[], T], threads: int = _LONG) -> T:
        """Do blocking work in a thread. If cancelled, the work is not begun, or ends at once."""
        lock = threading.Lock()
        is_cancelled = has_begun = False

        def begin() -> T:
            nonlocal has_begun
            with lock:
                if is_cancelled:
                    raise ConnectionLost("the request was cancelled")
                has_begun = True
            return work()

        running = asyncio.get_running_loop().run_in_executor(_threads(threads), begin)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            with lock:
                is_cancelled = True
            if has_begun:
                self._shut_down()
                await asyncio.wait([running])
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def _shut_down(self) -> None:
        """Wake the thread that waits for the socket."""
        if self._socket is not None:
            with suppress(OSError):
                # `SSLSocket.shutdown` would meddle with the thread's TLS state.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    """Threads of our own: a request must hold none of the default executor of the caller."""
    return ThreadPoolExecutor(number, thread_name_prefix="kernelbroker-http")


if hasattr(os, "register_at_fork"):  # a forked process has none of them
    os.register_at_fork(after_in_child=_threads.cache_clear)


def _has_data(response: http.client.HTTPResponse, sock: socket.socket) -> bool:
    """Whether a part of the body can be read without waiting for the socket."""
    if response.isclosed():
        return True
    timeout = sock.gettimeout()
    sock.settimeout(0)
    try:
        buffered = response.fp.peek(1)
    except ssl.SSLWantReadError:
        return False
    except OSError:
        return True  # reading tells it
    finally:
        sock.settimeout(timeout)
    # The line end after a chunk says nothing about the next one.
    after_chunk = response.chunked and response.chunk_left == 0
    return len(buffered) > (2 if after_chunk else 0)


def _write_all(file: IO[bytes], data: memoryview) -> None:
    while data:  # An unbuffered file may take less.
        data = data[file.write(data) :]
