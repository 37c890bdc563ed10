"""The only port of a sandbox that is a Pod: TLS, a token, and behind them the gateway or `pod_server`.

The gateway gets its connections as descriptors, as in other containers. They are plain: this process copies
between them and the broker's. A connection is checked once, by the head of its first request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .contract import POD_PATH

_HEAD_BYTES = 64 * 1024
_HEAD_S = 10.0
_COPY_BYTES = 256 * 1024
_MAX_CONNECTIONS = 500
_DENIED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Front:
    """Serves the port, until the process ends.

    Attributes:
        connections: the number of those whose token was right.
        used_at: when the last one of them has ended, in the time of the event loop.
    """

    def __init__(self, token: str, gateway_ended: asyncio.Future[int], handover: Path) -> None:
        """Args:
        handover: where the gateway connects to get connections.
        """
        self.connections = 0
        self.used_at = asyncio.get_running_loop().time()
        self._token = token
        self._ended = gateway_ended
        self._open = 0
        self._give: Callable[[socket.socket], None] | None = None
        self._handover = handover
        self._listener = socket.socket(socket.AF_UNIX)
        handover.unlink(missing_ok=True)
        self._listener.bind(str(handover))
        handover.chmod(0o600)
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._channel: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

    async def serve(
        self, port: int, context: ssl.SSLContext, give: Callable[[socket.socket], None]
    ) -> None:
        """Listen on the port, and wait for the gateway to connect.

        Args:
            give: takes a connection for `pod_server`.
        """
        self._give = give
        await asyncio.start_server(
            self._connected,
            "0.0.0.0",
            port,
            limit=_HEAD_BYTES,
            ssl=context,
            ssl_handshake_timeout=_HEAD_S,
        )
        waiting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(self._listener))
        either: list[asyncio.Future[Any]] = [waiting, self._ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._listener.close()
        self._handover.unlink(missing_ok=True)
        if waiting.done() and not waiting.cancelled():
            channel = waiting.result()[0]
            channel.setblocking(True)
            self._channel.set_result(channel)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        is_broker = False
        try:
            if self._open > _MAX_CONNECTIONS:
                return
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            if not self._is_allowed(head):
                writer.write(_DENIED)
                await writer.drain()
                return
            is_broker = True
            self.connections += 1
            inner = await self._inner(head)
            if inner is not None:
                await self._copy_both(head, reader, writer, inner)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            if is_broker:
                self.connections -= 1
                self.used_at = asyncio.get_running_loop().time()
            writer.transport.abort() if writer.is_closing() else writer.close()

    def _is_allowed(self, head: bytes) -> bool:
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                return hmac.compare_digest(value.strip(), f"token {self._token}".encode())
        return False

    async def _inner(self, head: bytes) -> socket.socket | None:
        """Return the broker's side of a connection to who serves the request; None if nobody does."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            if head.split(b" ", 2)[1].startswith(POD_PATH.encode()):
                assert self._give is not None, "serve() comes first"
                self._give(theirs.dup())
                return ours
            either: list[asyncio.Future[Any]] = [self._channel, self._ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._channel.done() and not self._ended.done():
                with contextlib.suppress(OSError):
                    socket.send_fds(self._channel.result(), [b"1"], [theirs.fileno()])
                    return ours
        ours.close()
        return None

    async def _copy_both(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inner: socket.socket,
    ) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(sock=inner, limit=_COPY_BYTES)
        inner_writer.write(head)
        inwards = asyncio.create_task(_copy(reader, inner_writer))
        try:
            await _copy(inner_reader, writer)  # its end is the connection's
        finally:
            inwards.cancel()
            inner_writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_COPY_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def handover_path() -> Path:
    """Return where the gateway connects: in memory, since no other directory can be written to."""
    return Path(f"/dev/shm/.kernelbroker-{os.getpid()}")
