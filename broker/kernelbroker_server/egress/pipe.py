"""The two ends of a request, the bytes that pass between them, and the clock that runs while none do."""

from __future__ import annotations

import asyncio

_READ_BYTES = 64 * 1024


class Pipe:
    """
    Args:
        idle_timeout: seconds without a byte in either direction, within `until_idle`.

    Attributes:
        bytes_up, bytes_down: sent to the server and received from it.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_timeout: float
    ) -> None:
        """The client's end."""
        self.bytes_up = 0
        self.bytes_down = 0
        self._client = (reader, _write_through(writer))
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._idle_timeout = idle_timeout
        self._clock = asyncio.timeout(None)

    def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The server's end."""
        self._server = (reader, _write_through(writer))

    def until_idle(self) -> asyncio.Timeout:
        """A block that ends in TimeoutError when no byte has passed for a while."""
        self._clock = asyncio.timeout(self._idle_timeout)
        return self._clock

    async def from_client(self) -> bytes:
        """Empty at the end, however it came about."""
        try:
            data = await self._client[0].read(_READ_BYTES)
        except OSError:
            return b""
        self._awake()
        return data

    async def to_client(self, data: bytes) -> None:
        """Raises OSError."""
        self._client[1].write(data)
        await self._client[1].drain()

    async def from_server(self) -> bytes:
        """Empty at an orderly end. Raises OSError."""
        assert self._server is not None
        data = await self._server[0].read(_READ_BYTES)
        self.bytes_down += len(data)
        self._awake()
        return data

    async def to_server(self, data: bytes) -> None:
        """Raises OSError."""
        assert self._server is not None
        self.bytes_up += len(data)
        self._server[1].write(data)
        await self._server[1].drain()

    async def last_words(self, timeout: float) -> None:
        """Let the client read to the end, for so many seconds: a hard end could lose what was sent."""
        async with asyncio.timeout(timeout):
            await self._client[1].drain()
            self._client[1].write_eof()
            while await self._client[0].read(_READ_BYTES):
                pass

    def drop_server(self) -> None:
        """Reading from it ends."""
        if self._server is not None:
            self._server[1].transport.abort()

    def close(self) -> None:
        self.drop_server()
        self._client[1].transport.abort()

    def _awake(self) -> None:
        if not self._clock.expired():
            now = asyncio.get_running_loop().time()
            self._clock.reschedule(now + self._idle_timeout)


def _write_through(writer: asyncio.StreamWriter) -> asyncio.StreamWriter:
    """Have `drain` wait until all is out: what is left in between at the end would be lost."""
    writer.transport.set_write_buffer_limits(high=0)
    return writer
