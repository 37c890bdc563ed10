"""A proxy that cuts and slows down connections at random bytes. It knows nothing of what it relays."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_PIECE = 16 * 1024
_SMALL_BUFFER = 16 * 1024
_EARLY = 0.15
"""The share of cuts that come within the first bytes of a connection, where its head is."""
_EARLY_BYTES = 600


class CuttingProxy:
    """
    Attributes:
        targets: the ports that it relays to, each in turn; one where nobody listens is passed over.
        cuts: the share of connections that are cut.
        reach: bytes after which a connection is cut, on average.
        pauses: the share of pieces behind which a slow client pauses.
        faults: counts what was done.
    """

    def __init__(self, rng: random.Random, faults: Counter[str]) -> None:
        self.targets: list[int] = []
        self._turn = 0
        self.cuts = 0.0
        self.reach = 3_000
        self.pauses = 0.0
        self.faults = faults
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def calm(self) -> None:
        """Do no more harm."""
        self.cuts = self.pauses = 0.0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[CuttingProxy]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield self
        finally:
            self._server.close()
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        with suppress(OSError, asyncio.CancelledError):
            await self._relay(reader, writer)
        writer.transport.abort()
        self._links.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = await self._connected()
        from_broker, to_broker = await asyncio.open_connection(sock=sock, limit=_SMALL_BUFFER)
        budget = [self._budget(), self._budget() if self._rng.random() < 0.3 else None]
        ways = {
            asyncio.create_task(self._copy(from_broker, writer, budget[0], slow=True)),
            asyncio.create_task(self._copy(reader, to_broker, budget[1])),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_broker.transport.abort()

    async def _connected(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        for _ in self.targets:
            self._turn += 1
            port = self.targets[self._turn % len(self.targets)]
            sock = socket.socket()
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
            try:
                await loop.sock_connect(sock, ("127.0.0.1", port))
            except OSError:
                sock.close()
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise OSError("no broker accepts connections")

    def _budget(self) -> int | None:
        if self._rng.random() >= self.cuts:
            return None
        if self._rng.random() < _EARLY:
            return self._rng.randrange(_EARLY_BYTES)
        return int(self._rng.expovariate(1 / self.reach))

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        budget: int | None,
        *,
        slow: bool = False,
    ) -> None:
        while data := await reader.read(_PIECE):
            if budget is not None and len(data) >= budget:
                writer.write(data[:budget])
                await writer.drain()
                if self._rng.random() < 0.5:  # an end after exactly these bytes; else a reset
                    writer.write_eof()
                self.faults["connection cut"] += 1
                return
            budget = None if budget is None else budget - len(data)
            writer.write(data)
            await writer.drain()
            if slow and self._rng.random() < self.pauses:
                self.faults["slow reader"] += 1
                await asyncio.sleep(self._rng.uniform(0.01, 0.3))
