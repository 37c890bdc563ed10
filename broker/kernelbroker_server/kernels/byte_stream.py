"""A connection to a gateway as bytes in both directions, with or without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from typing import Any, Self

_SEND_BUFFER_BYTES = 1024 * 1024
"""SO_SNDBUF. With the default of unix sockets a large upload takes twice as long."""
_TLS_BUFFER_BYTES = 512 * 1024


class ByteStream(ABC):
    """A connection, until `close`. Its calls raise OSError if it breaks."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send, and wait until little of it is left in this process."""

    @abstractmethod
    async def receive(self, size: int) -> bytes:
        """Return what has come, at most `size` bytes; empty at the end."""

    @abstractmethod
    def close(self) -> None:
        """Close at once. Calling it twice does no harm."""


class SocketStream(ByteStream):
    """A socket, read without a copy."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    async def connect(cls, family: socket.AddressFamily, address: Any) -> Self:
        """Connect. Raises OSError."""
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            await asyncio.get_running_loop().sock_connect(connection, address)
            if family is socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self, size: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, size)

    def close(self) -> None:
        self._socket.close()


class TlsStream(ByteStream):
    """A connection over TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext) -> Self:
        """Connect. Raises OSError."""
        return cls(*await asyncio.open_connection(host, port, ssl=tls, limit=_TLS_BUFFER_BYTES))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self, size: int) -> bytes:
        return await self._reader.read(size)

    def close(self) -> None:
        self._writer.transport.abort()
