"""One HTTP request to a sandbox's gateway, streamed both ways: for files, and whatever else is large.

Everything is pulled: what the consumer has not asked for stays in the sandbox, so a transfer of any
size holds a chunk or two, and a slow side slows the other. What the gateway sends is hostile: its
head is bounded, it must keep talking, and h11 sees to the framing. Each request has a connection of
its own, whose end is the end of the request, beside the kernel's channel and at any time.
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

from .endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from .splice import splice

CHUNK_BYTES = 512 * 1024
"""Read at once; of what the gateway sends, a unix socket holds half as much."""
_PASSED_BYTES = 1024 * 1024
"""How much of a body is on its way at once that comes from, or goes to, another socket."""
_HEAD_BYTES = 64 * 1024
_HEAD_TIMEOUT_S = 120.0
"""How long the gateway may take to do what it was asked, and answer."""
_SILENCE_S = 30.0
"""How long it may neither take nor send anything of a body."""
_YIELD_EVERY = 16
"""Chunks after which others may run: a thousand of them may come in one piece."""
_INTERIM_HEADS = 10
"""Heads of status 1xx that may come before the answer."""


class TransferFailed(Exception):
    """The gateway did not carry out the request as HTTP has it; the message says how."""


class Exchange:
    """One request: `send` its body, if it has one, then `answer`, then read the answer's body.

    Leaving the `async with` hangs up, whatever is still under way; the gateway then drops a request
    whose body is not complete.

    Attributes:
        status, headers: of the answer; the headers' names in lower case.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._socket = connection
        self._is_deaf = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    @classmethod
    async def open(
        cls, endpoint: Endpoint, method: str, target: str, headers: dict[str, str] | None = None
    ) -> Self:
        """Connect and send the request's head.

        Args:
            target: path and query, percent-encoded.
            headers: `Content-Length`, or `Transfer-Encoding: chunked`, where a body will be sent.

        Raises:
            TransferFailed
        """
        loop = asyncio.get_running_loop()
        lines = {"Host": "gateway", "Connection": "close", **(headers or {})}
        match endpoint:
            case UnixEndpoint(path=path):
                family, address = socket.AF_UNIX, str(path)
            case TcpEndpoint(host=host, port=port, token=token):
                family, address = socket.AF_INET, (host, port)  # type: ignore[assignment]
                lines["Authorization"] = f"token {token}"
        self = cls(socket.socket(family, socket.SOCK_STREAM))
        self._socket.setblocking(False)
        try:
            with _failures("be reached"):
                async with asyncio.timeout(_SILENCE_S):
                    await loop.sock_connect(self._socket, address)
                if family is socket.AF_INET:
                    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                request = h11.Request(method=method, target=target, headers=list(lines.items()))
                await self._send(request)
        except BaseException:
            self.close()
            raise
        return self

    async def send(self, data: bytes) -> bool:
        """Send a piece of the body; returns when the sandbox has taken it. Raises TransferFailed.

        False says that it takes no more, having answered already: `answer` tells why.
        """
        with _failures("take the data"):
            try:
                await self._send(h11.Data(data=data))
            except ConnectionError:
                self._is_deaf = True
        return not self._is_deaf

    async def take_from(self, source: socket.socket, size: int, silence: float) -> bool:
        """The same, with the next `size` bytes of a socket that does not block, without holding them.

        Raises:
            EOFError: the source ended before.
            SourceSilent: it gave nothing for `silence` seconds.
            TransferFailed
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PASSED_BYTES)
        with _failures("take the data"):
            # Nothing but its length is looked at: h11 has to know how much is still to come.
            self._http.send_with_data_passthrough(h11.Data(data=range(size)))  # type: ignore[arg-type]
            try:
                moved = await splice(source, self._socket, size, silence)
            except ConnectionError:
                self._is_deaf = True
                return False
        if moved < size:
            raise EOFError
        return True

    async def answer(self) -> None:
        """End the request, and wait for the head of its answer. Raises TransferFailed."""
        with _failures("answer"):
            if not self._is_deaf:
                with contextlib.suppress(ConnectionError):
                    await self._send(h11.EndOfMessage())
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                for _ in range(_INTERIM_HEADS):
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
        raise TransferFailed("the sandbox's answer is not one")

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer's body, as it comes. Raises TransferFailed where it ends before its end."""
        with _failures("send the data"):
            if "content-length" in self.headers and self._http.their_state is h11.SEND_BODY:
                left = int(self.headers["content-length"])
                # Past h11, which would copy each byte three times.
                data, _ = self._http.trailing_data
                while left:
                    data = data or await self._receive(min(left, CHUNK_BYTES))
                    if not data:
                        raise TransferFailed(f"the sandbox sent {left:,} bytes too few")
                    data = data[:left]
                    left -= len(data)
                    yield data
                    data = b""
                return
            for count in itertools.count(1):
                event = await self._next_event()
                if not isinstance(event, h11.Data):
                    return
                yield bytes(event.data)
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)

    async def pass_to(self, target: socket.socket, silence: float) -> None:
        """Send the answer's body, whose length was announced, to a socket that does not block.

        Raises:
            TransferFailed: it ends before its end, is silent, or its receiver is gone or silent.
        """
        loop = asyncio.get_running_loop()
        left = int(self.headers["content-length"])
        # Not spliced: this way, what a splice passes on lies in single pages, which costs the client
        # more to read than is saved here. One buffer for all: new memory costs more than the copy.
        buffer = memoryview(bytearray(min(left, _PASSED_BYTES)))
        data: bytes | memoryview = self._http.trailing_data[0][:left]
        with _failures("send the data"):
            for count in itertools.count(1):
                async with asyncio.timeout(silence):
                    await loop.sock_sendall(target, data)
                left -= len(data)
                if not left:
                    return
                async with asyncio.timeout(_SILENCE_S):
                    data = buffer[: await loop.sock_recv_into(self._socket, buffer[:left])]
                if not data:
                    raise TransferFailed(f"the sandbox sent {left:,} bytes too few")
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)

    async def body(self, limit: int) -> bytes:
        """All of the answer's body, of at most `limit` bytes. Raises TransferFailed."""
        gathered = bytearray()
        with _failures("send the data"):
            async with (
                asyncio.timeout(_HEAD_TIMEOUT_S),
                contextlib.aclosing(self.chunks()) as chunks,
            ):
                async for chunk in chunks:
                    gathered += chunk
                    if len(gathered) > limit:
                        raise TransferFailed(f"the sandbox's answer is longer than {limit:,} bytes")
        return bytes(gathered)

    def close(self) -> None:
        """Hang up; twice does no harm."""
        self._socket.close()

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
        loop = asyncio.get_running_loop()
        for data in self._http.send_with_data_passthrough(event) or ():
            async with asyncio.timeout(_SILENCE_S):
                await loop.sock_sendall(self._socket, data)

    async def _receive(self, size: int) -> bytes:
        async with asyncio.timeout(_SILENCE_S):
            return await asyncio.get_running_loop().sock_recv(self._socket, size)

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._receive(CHUNK_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise TransferFailed("the sandbox hung up before it had answered")
            self._http.receive_data(data)
        return event


@contextlib.contextmanager
def _failures(what: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as exc:
        raise TransferFailed(f"the sandbox did not {what} in time") from exc
    except OSError as exc:
        raise TransferFailed(f"the sandbox did not {what}: {exc.strerror or exc}") from exc
    except h11.LocalProtocolError as exc:  # of a body that is not as long as was said, for one
        raise TransferFailed(f"the request is not as it was announced: {exc}") from exc
    except h11.RemoteProtocolError as exc:
        raise TransferFailed(f"the sandbox did not {what} as HTTP has it: {exc}") from exc
