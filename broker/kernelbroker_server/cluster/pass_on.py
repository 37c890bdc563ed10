"""Passes a request on to another broker, with everything that follows on its connection.

The client's connection is taken from the server. The request goes to the other broker with
`Connection: close`, and both connections become one: answers of any length, streams and WebSockets pass
unchanged, with backpressure. A small body is kept until the first bytes of the answer, so that the request
can be sent again elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kernelbroker.protocol.errors import Unavailable
from tornado.httputil import HTTPConnection, HTTPHeaders
from tornado.iostream import IOStream, StreamClosedError

logger = logging.getLogger(__name__)

_SMALL_BYTES = 2 * 1024**2
_PIECE_BYTES = 64 * 1024
_CONNECT_S = 5.0
_BODY_S = 60.0
_ATTEMPTS = 100
_RETRY_S = 0.1
_MOVED = b"HTTP/1.1 421"


class Target(NamedTuple):
    """The broker that answers.

    Attributes:
        lost: waits until it can do nothing any more; None for this broker itself.
    """

    url: str
    lost: Callable[[], Coroutine[Any, Any, None]] | None = None


Choose = Callable[[bytes], Awaitable[Target]]
"""Returns the broker that answers a request with this body. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request."""

    method: str
    target: str
    headers: HTTPHeaders

    @property
    def length(self) -> int | None:
        """Of the body; None if it is not known beforehand."""
        if "Transfer-Encoding" in self.headers:
            return None
        text = self.headers.get("Content-Length", "0")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

    @property
    def is_small(self) -> bool:
        """Whether the body can be kept."""
        return self.length is not None and self.length <= _SMALL_BYTES

    @property
    def is_safe(self) -> bool:
        """Whether the request can be sent twice."""
        return self.method in ("GET", "HEAD", "OPTIONS") or "Idempotency-Key" in self.headers

    @property
    def upgrades(self) -> bool:
        return "upgrade" in self.headers.get("Connection", "").lower()

    def encode(self, extra: tuple[str, str]) -> bytes:
        """The head as it is passed on."""
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        for name, value in self.headers.get_all():
            if name.lower() not in ("connection", "keep-alive", "expect", extra[0].lower()):
                lines.append(f"{name}: {value}")
        lines.append(f"{extra[0]}: {extra[1]}")
        lines.append("Connection: Upgrade" if self.upgrades else "Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


class Passed:
    """A request whose connection was taken from the server."""

    def __init__(self, connection: HTTPConnection, head: Head) -> None:
        self.head = head
        detached: Any = connection
        self.client: IOStream = detached.detach()

    async def body(self) -> bytes:
        """Read a small body. Raises StreamClosedError, TimeoutError."""
        if not self.head.length:
            return b""
        if self.head.headers.get("Expect", "").lower() == "100-continue":
            await self.client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async with asyncio.timeout(_BODY_S):
            return await self.client.read_bytes(self.head.length)

    async def refuse(self, status: int, message: str) -> None:
        """Answer with an error of our own, and close the connection."""
        reason = {421: "Misdirected Request", 503: "Service Unavailable"}[status]
        error = {"code": "unavailable", "message": message or reason, "retry_after": 1}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(StreamClosedError):
            await self.client.write(head.encode() + body)
        self.client.close()


class Tunnels:
    """The requests that are being passed on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, passed: Passed, choose: Choose, hop: tuple[str, str]) -> None:
        """Pass a request on in the background."""
        task = asyncio.create_task(_pass_on(passed, choose, hop), name="passes a request on")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, timeout: float) -> None:
        """Wait for them, and cancel those that take longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _pass_on(passed: Passed, choose: Choose, hop: tuple[str, str]) -> None:
    client = passed.client
    try:
        small = passed.head.is_small
        body = await passed.body() if small else b""
        for _ in range(_ATTEMPTS):
            target = await choose(body)
            try:
                reader, writer = await _connect(target.url)
            except (OSError, TimeoutError):
                await asyncio.sleep(_RETRY_S)  # it has just ended: others take over
                continue
            try:
                writer.write(passed.head.encode(hop) + body)
                if small:
                    first = await _first(reader, client, target)
                    if first.startswith(_MOVED) or (not first and passed.head.is_safe):
                        await asyncio.sleep(_RETRY_S)
                        continue
                    if not first:
                        raise Unavailable(
                            "the broker of the session was lost while it answered; the request may have "
                            "been carried out",
                            retry_after=1,
                        )
                    await client.write(first)
                await _join(client, reader, writer, target)
                return
            finally:
                writer.close()
        await passed.refuse(503, "no broker answers at present")
    except Unavailable as exc:
        await passed.refuse(503, exc.message)
    except (OSError, StreamClosedError, TimeoutError):
        pass
    except Exception:
        logger.exception("a request could not be passed on")
    finally:
        client.close()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (80 if tls is None else 443)
    async with asyncio.timeout(_CONNECT_S):
        return await asyncio.open_connection(parts.hostname, port, ssl=tls)


async def _first(reader: asyncio.StreamReader, client: IOStream, target: Target) -> bytes:
    """Return the first bytes of the answer; none if the broker was lost before it answered.

    Raises StreamClosedError if the client goes away before.
    """
    gone = asyncio.Event()
    client.set_close_callback(gone.set)
    reading = asyncio.create_task(reader.read(_PIECE_BYTES))
    leaving = asyncio.create_task(gone.wait())
    losing = _lost(target)
    try:
        await asyncio.wait({reading, leaving, *losing}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            if leaving.done():
                raise StreamClosedError
            return b""
        try:
            return reading.result()
        except OSError:
            return b""
    finally:
        for task in (reading, leaving, *losing):
            task.cancel()
        client.set_close_callback(None)


def _lost(target: Target) -> list[asyncio.Task[None]]:
    return [] if target.lost is None else [asyncio.create_task(target.lost())]


async def _join(
    client: IOStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target
) -> None:
    """Carry bytes in both directions until the broker has closed or is lost, or the client has closed."""

    async def up() -> None:
        buffer = bytearray(_PIECE_BYTES)
        with contextlib.suppress(StreamClosedError, OSError):
            while True:
                count = await client.read_into(buffer, partial=True)
                writer.write(bytes(buffer[:count]))
                await writer.drain()

    async def down() -> None:
        with contextlib.suppress(StreamClosedError, OSError):
            while data := await reader.read(_PIECE_BYTES):
                await client.write(data)

    tasks = [asyncio.create_task(up()), asyncio.create_task(down()), *_lost(target)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
