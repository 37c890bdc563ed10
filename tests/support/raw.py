"""Malformed gateways, whose responses are written byte by byte."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeAlias

from kernelbroker_server.kernels.framing import SUBPROTOCOL

Answer: TypeAlias = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Gets the head of each request, and writes what it likes; the connection is closed after it."""

CREATED = b'HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n{"id":"k"}'


def switching(head: bytes) -> bytes:
    """Return the response that turns a connection into a WebSocket (RFC 6455, section 4.2.2)."""
    found = re.search(rb"(?i)sec-websocket-key: *(\S+)", head)
    assert found is not None
    key = found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n"
        b"Sec-WebSocket-Protocol: " + SUBPROTOCOL.encode() + b"\r\n\r\n"
    )


def saying(*pieces: bytes) -> Answer:
    """A gateway that sends these bytes and closes the connection."""

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return answer


@asynccontextmanager
async def answering(answer: Answer, path: Path | None = None) -> AsyncIterator[int]:
    """Serve on a unix socket, or on a free TCP port, which is yielded."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await answer(head, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    if path is not None:
        server = await asyncio.start_unix_server(serve, str(path))
        port = 0
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.close()


@contextmanager
def flooding(path: Path, message: bytes, seconds: float) -> Iterator[threading.Event]:
    """A gateway in another thread that sends one message repeatedly; the event is set when it has begun."""
    begun = threading.Event()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def head(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(4096)
        return data

    def work() -> None:
        start, _ = listener.accept()
        head(start)
        start.sendall(CREATED)
        channel, _ = listener.accept()
        size = len(message).to_bytes(8, "big")
        burst = (b"\x82\x7f" + size + message) * 100
        with start, channel, contextlib.suppress(OSError):
            channel.sendall(switching(head(channel)))
            begun.set()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                channel.sendall(burst)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield begun
    finally:
        thread.join()
        listener.close()
