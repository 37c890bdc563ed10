"""HTTP requests to the broker, through the standard library.

`HTTPRequest` streams a request and its answer; `call` is a request and an answer of JSON. The
connection is made on the event loop; sending and receiving block a thread, one piece at a time. A
cancelled call shuts the socket down, so its thread ends at once. No proxies are used, since a broker is
usually on this machine or in the same network.
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
from types import TracebackType
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from .discovery import Address
from .http_errors import error_from_answer
from .protocol.codec import decode_json
from .protocol.errors import ConnectionLost, Unauthorized

_MAX_THREADS = 1_000
"""Requests that may wait at the same time."""
T = TypeVar("T")

CHUNK = 4 * 2**20
"""Bytes that are moved at once; each chunk costs a change of threads."""
MAX_BODY = 16 * 2**20
"""Bytes that are read of an answer of JSON."""
_NO_CONTENT = 204


async def call(
    address: Address,
    method: str,
    path: str,
    timeout: float,
    body: bytes | None = None,
    extra_headers: dict[str, str] | None = None,
) -> Any:
    """Send a request and return the JSON of the answer; None if the answer has no body.

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
    token = address.token
    try:
        async with HTTPRequest(address, method, path, timeout) as request:
            await request.begin(headers)
            if body is not None:
                await request.send(body)
            status = await request.answer()
            answer = await request.read_all(MAX_BODY)
    except ConnectionLost as exc:
        raise address.unreachable(exc) from exc
    except Unauthorized:
        if not address.renew(token):
            raise
        return await call(address, method, path, timeout, body, extra_headers)
    if status == _NO_CONTENT:
        return None
    try:
        # An answer that is cut in its head looks to `http.client` like one without a body.
        return decode_json(answer)
    except msgspec.DecodeError as exc:
        raise address.unreachable(f"the answer to {path} is not JSON") from exc


class HTTPRequest:
    """One request: `begin`, then `send` the body if there is one, `answer`, and `read` its body.

    Leaving the `async with` closes the connection. Any await may be cancelled; no thread stays behind.

    Attributes:
        status, headers: of the answer.
        was_answered_early: the broker has answered before it got the whole body; `answer` has the reason.
    """

    def __init__(self, address: Address, method: str, path: str, timeout: float) -> None:
        self.status = 0
        self.was_answered_early = False
        self.headers = http.client.HTTPMessage()
        self._address = address
        self._method = method
        self._token = address.token
        self._path = urlsplit(address.url).path + path
        self._timeout = timeout
        self._connection: http.client.HTTPConnection = http.client.HTTPConnection("")
        self._response: http.client.HTTPResponse | None = None
        self._is_chunked = False
        self._buffer: memoryview | None = None

    async def begin(self, headers: dict[str, str] | None = None, *, chunked: bool = False) -> None:
        """Connect and send the head; with `chunked` a body of unknown length follows.

        Raises:
            ConnectionFailed: the broker cannot be reached.
        """
        self._is_chunked = chunked

        def work() -> None:
            connection = self._connection
            if isinstance(connection.sock, ssl.SSLSocket):
                connection.sock.do_handshake()
            connection.putrequest(self._method, self._path, skip_accept_encoding=True)
            lines = self._address.headers | (headers or {})
            if chunked:
                lines["Transfer-Encoding"] = "chunked"
            for name, value in lines.items():
                connection.putheader(name, value)
            connection.endheaders()

        try:
            await self._connect()
            await self._in_thread(work)
        except (OSError, http.client.HTTPException) as exc:
            raise self._address.unreachable(exc) from exc

    async def _connect(self) -> None:
        url = urlsplit(self._address.url)
        host, port = url.hostname or "", url.port or (443 if self._address.is_tls else 80)
        async with asyncio.timeout(self._timeout):
            sock = await _connected_socket(host, port)
        sock.settimeout(self._timeout)
        if self._address.is_tls:
            tls = self._address.ssl_context()
            sock = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
            self._connection = http.client.HTTPSConnection(host, url.port, context=tls)
        else:
            self._connection = http.client.HTTPConnection(host, url.port)
        self._connection.sock = sock

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
                    self._connection.send(piece)
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
                return self._connection.sock.sendfile(file, file.tell(), count)
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

        def work() -> http.client.HTTPResponse:
            if self._is_chunked and not self.was_answered_early:
                with suppress(ConnectionError):
                    self._connection.send(b"0\r\n\r\n")
            return self._connection.getresponse()

        try:
            self._response = response = await self._in_thread(work)
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
        body = bytearray()
        while len(body) < limit and (piece := await self.read()):
            body += piece
        return bytes(body)

    async def read_available(self) -> bytes:
        """Return the part of the body that has arrived, at least one byte; empty at its end."""
        return await self._read(lambda response: response.read1(CHUNK))

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

    async def _read(self, use: Callable[[http.client.HTTPResponse], T]) -> T:
        response = self._response
        assert response is not None, "`answer` comes first"

        def work() -> T:
            try:
                return use(response)
            except (OSError, http.client.HTTPException) as exc:
                raise ConnectionLost(f"the download broke off ({exc}): try it again") from exc

        return await self._in_thread(work)

    async def __aenter__(self) -> HTTPRequest:
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

        running = asyncio.get_running_loop().run_in_executor(_threads(), begin)
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
        if self._connection.sock is not None:
            with suppress(
                OSError
            ):  # `SSLSocket.shutdown` would meddle with the thread's TLS state.
                socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads of our own: a request that waits must hold none of the default executor of the caller."""
    return ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="kernelbroker-http")


if hasattr(os, "register_at_fork"):  # a forked process has none of them
    os.register_at_fork(after_in_child=_threads.cache_clear)


async def _connected_socket(host: str, port: int) -> socket.socket:
    """A connected TCP socket; the addresses of the host are tried in turn."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, proto, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as exc:
            sock.close()
            failure = exc
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"no address for {host}")


def _write_all(file: IO[bytes], data: memoryview) -> None:
    while data:  # An unbuffered file may take less.
        data = data[file.write(data) :]
