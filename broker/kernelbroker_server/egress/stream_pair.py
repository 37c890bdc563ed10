"""The streams to the client and to the server of one connection, with byte counts and an idle timeout."""

from __future__ import annotations

import asyncio

_READ_BYTES = 64 * 1024


class StreamPair:
    """Created with the client's stream; `connect_server` adds the server's.

    Args:
        idle_timeout: seconds without a byte from either side after which `until_idle` ends.

    Attributes:
        bytes_up, bytes_down: sent to the server and received from it.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_timeout: float
    ) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self._client = (reader, _unbuffered(writer))
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._idle_timeout = idle_timeout
        self._clock = asyncio.timeout(None)

    def connect_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Set the stream to the server."""
        self._server = (reader, _unbuffered(writer))

    def until_idle(self, timeout: float | None = None) -> asyncio.Timeout:
        """A context that raises TimeoutError when no byte has arrived for `idle_timeout` seconds.

        Args:
            timeout: takes the place of `idle_timeout`.
        """
        self._idle_timeout = timeout or self._idle_timeout
        self._clock = asyncio.timeout(self._idle_timeout)
        return self._clock

    async def read_client(self) -> bytes:
        """Read from the client; empty at the end and after an error."""
        try:
            data = await self._client[0].read(_READ_BYTES)
        except OSError:
            return b""
        self._restart_idle_timer()
        return data

    async def write_client(self, data: bytes) -> None:
        """Raises OSError."""
        self._client[1].write(data)
        await self._client[1].drain()

    async def read_server(self) -> bytes:
        """Read from the server; empty at the end. Raises OSError."""
        assert self._server is not None
        data = await self._server[0].read(_READ_BYTES)
        self.bytes_down += len(data)
        self._restart_idle_timer()
        return data

    async def write_server(self, data: bytes) -> None:
        """Raises OSError."""
        assert self._server is not None
        self.bytes_up += len(data)
        self._server[1].write(data)
        await self._server[1].drain()

    async def finish_client(self, timeout: float) -> None:
        """Close the stream to the client so that it can read everything: an abort could lose sent bytes.

        Raises:
            OSError, TimeoutError: the client did not close its side within `timeout` seconds.
        """
        async with asyncio.timeout(timeout):
            await self._client[1].drain()
            self._client[1].write_eof()
            while await self._client[0].read(_READ_BYTES):
                pass

    def abort_server(self) -> None:
        """Abort the connection to the server; reading from it ends."""
        if self._server is not None:
            self._server[1].transport.abort()

    def close(self) -> None:
        """Abort both connections."""
        self.abort_server()
        self._client[1].transport.abort()

    def _restart_idle_timer(self) -> None:
        if not self._clock.expired():
            now = asyncio.get_running_loop().time()
            self._clock.reschedule(now + self._idle_timeout)


def _unbuffered(writer: asyncio.StreamWriter) -> asyncio.StreamWriter:
    """Make `drain` wait until everything is sent, since `close` drops what is still buffered."""
    writer.transport.set_write_buffer_limits(high=0)
    return writer
