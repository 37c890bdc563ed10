"""One HTTP request to a sandbox's gateway, with streamed bodies: for files and tables.

The consumer pulls: data that it has not asked for stays in the sandbox. A transfer of any size
therefore holds one or two chunks in memory, and a slow side slows the other one down. The gateway is
untrusted: the size of its headers and every wait are bounded, and h11 checks the framing. Each
request has its own connection, independent of the kernel's channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, Self

import h11

from .byte_stream import ByteStream, SocketStream, TlsStream
from .endpoint import Endpoint, TcpEndpoint, UnixEndpoint

CHUNK_BYTES = 512 * 1024
"""Read from the gateway's socket at once."""
_HEAD_BYTES = 64 * 1024
"""Size of the response's headers."""
_RESPONSE_TIMEOUT_S = 120.0
"""Until the response's headers have come."""
_IDLE_TIMEOUT_S = 30.0
"""Between two pieces of a body, in either direction."""
_YIELD_EVERY = 16
"""Chunks after which other tasks run, even if more data is ready."""
_MAX_INTERIM_RESPONSES = 10
"""Responses of status 1xx before the final one."""


class TransferFailed(Exception):
    """The gateway broke the HTTP protocol, was too slow, or hung up. The message says which."""


class GatewayRequest:
    """One request: `send` its body if it has one, then `answer`, then read the response's body.

    Leaving the `async with` closes the connection at any stage. The gateway drops a request whose
    body is incomplete.

    Attributes:
        status: the response's status code.
        headers: the response's headers, with names in lower case.
        received: bytes of the response's body that were read.
    """

    def __init__(self, connection: ByteStream) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.received = 0
        self._connection = connection
        self._is_answered_early = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    @classmethod
    async def open(
        cls, endpoint: Endpoint, method: str, target: str, headers: dict[str, str] | None = None
    ) -> Self:
        """Connect, and send the request line and headers.

        Args:
            target: path and query, percent-encoded.
            headers: must have `Content-Length` or `Transfer-Encoding: chunked` if a body follows.

        Raises:
            TransferFailed: the gateway cannot be reached.
        """
        lines = {"Host": "gateway", "Connection": "close", **(headers or {}), **endpoint.headers}
        with _failures("be reached"):
            async with asyncio.timeout(_IDLE_TIMEOUT_S):
                self = cls(await _connect(endpoint))
        try:
            with _failures("be reached"):
                request = h11.Request(method=method, target=target, headers=list(lines.items()))
                await self._send(request)
        except BaseException:
            self.close()
            raise
        return self

    async def send(self, data: bytes) -> bool:
        """Send a piece of the body, and wait until the kernel's socket buffer has it.

        Returns:
            False if the gateway reads no more, since it has answered already. Call `answer` then.

        Raises:
            TransferFailed: the gateway was too slow.
        """
        with _failures("take the data"):
            try:
                await self._send(h11.Data(data=data))
            except ConnectionError:
                self._is_answered_early = True
        return not self._is_answered_early

    async def answer(self) -> None:
        """End the request's body, and wait for the response's headers. Raises TransferFailed."""
        with _failures("answer"):
            if not self._is_answered_early:
                with contextlib.suppress(ConnectionError):
                    await self._send(h11.EndOfMessage())
            async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                for _ in range(_MAX_INTERIM_RESPONSES):
                    event = await self._next_event()
                    if isinstance(event, h11.Response):
                        self.status = event.status_code
                        self.headers = {
                            name.decode("latin-1"): value.decode("latin-1")
                            for name, value in event.headers
                        }
                        return
                    if not isinstance(event, h11.InformationalResponse):
                        break
        raise TransferFailed("the sandbox's answer is not HTTP")

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the response's body as it comes. Raises TransferFailed if it ends early."""
        with _failures("send the data"):
            if "content-length" in self.headers and self._http.their_state is h11.SEND_BODY:
                left = int(self.headers["content-length"])
                # Read without h11, which would copy each byte three times.
                data, _ = self._http.trailing_data
                while left:
                    data = data or await self._receive(min(left, CHUNK_BYTES))
                    if not data:
                        raise TransferFailed(f"the sandbox sent {left:,} bytes too few")
                    data = data[:left]
                    left -= len(data)
                    self.received += len(data)
                    yield data
                    data = b""
                return
            for count in itertools.count(1):
                event = await self._next_event()
                if not isinstance(event, h11.Data):
                    return
                self.received += len(event.data)
                yield bytes(event.data)
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)

    async def body(self, limit: int) -> bytes:
        """Read the whole response body. Raises TransferFailed if it exceeds `limit` bytes."""
        gathered = bytearray()
        with _failures("send the data"):
            async with (
                asyncio.timeout(_RESPONSE_TIMEOUT_S),
                contextlib.aclosing(self.chunks()) as chunks,
            ):
                async for chunk in chunks:
                    gathered += chunk
                    if len(gathered) > limit:
                        raise TransferFailed(f"the sandbox's answer is longer than {limit:,} bytes")
        return bytes(gathered)

    def close(self) -> None:
        """Close the connection. Closing twice is allowed."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _send(self, event: Any) -> None:
        for data in self._http.send_with_data_passthrough(event) or ():
            async with asyncio.timeout(_IDLE_TIMEOUT_S):
                await self._connection.send(data)

    async def _receive(self, size: int) -> bytes:
        async with asyncio.timeout(_IDLE_TIMEOUT_S):
            return await self._connection.receive(size)

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._receive(CHUNK_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise TransferFailed("the sandbox closed the connection before it answered")
            self._http.receive_data(data)
        return event


async def _connect(endpoint: Endpoint) -> ByteStream:
    match endpoint:
        case UnixEndpoint(path=path):
            return await SocketStream.connect(socket.AF_UNIX, str(path))
        case TcpEndpoint(host=host, port=port, tls=tls):
            if tls is not None:
                return await TlsStream.connect(host, port, tls)
            return await SocketStream.connect(socket.AF_INET, (host, port))


@contextlib.contextmanager
def _failures(what: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as exc:
        raise TransferFailed(f"the sandbox did not {what} in time") from exc
    except OSError as exc:
        raise TransferFailed(f"the sandbox did not {what}: {exc.strerror or exc}") from exc
    except h11.LocalProtocolError as exc:  # for example a body shorter than its Content-Length
        raise TransferFailed(f"the request does not match its headers: {exc}") from exc
    except h11.RemoteProtocolError as exc:
        raise TransferFailed(
            f"the sandbox broke the HTTP protocol and did not {what}: {exc}"
        ) from exc
