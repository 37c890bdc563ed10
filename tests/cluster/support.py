"""Several brokers on one database, and a round-robin in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.support import BrokerProcess, backend_settings
from tests.support.postgres import Server

TOKEN = "the-token-of-all-brokers"
SECRET = "the-secret-of-all-brokers"
LEASE_S = 2


class Brokers:
    """Brokers of one machine: they share the database and data_dir."""

    def __init__(self, directory: Path, database: str, **settings: object) -> None:
        self.directory = directory
        self.all: list[BrokerProcess] = []
        self._names = itertools.count()
        self._settings = {
            **backend_settings("local-fork"),
            "STORE": database,
            "CLUSTER__SECRET": SECRET,
            "CLUSTER__LEASE": LEASE_S,
            "TOKEN": TOKEN,
            "SHUTDOWN": "adopt",
            "LOCAL__DATA_DIR": directory / "data",
            "LOCAL__RUN_DIR": directory / "run",
            "POOL__MIN_SIZE": 1,
            "POOL__MAX_SIZE": 8,
        } | settings

    def start(self) -> BrokerProcess:
        """Start a further broker."""
        directory = self.directory / f"broker{next(self._names)}"
        directory.mkdir()
        own = {"STATE_DIR": directory / "state"}
        broker = BrokerProcess(directory, **(self._settings | own))
        broker.data_dir, broker.run_dir = self.directory / "data", self.directory / "run"
        self.all.append(broker)
        return broker.start()

    def use_database(self, url: Callable[[str], str]) -> None:
        """Reach the database at another URL, made of its own."""
        self._settings["STORE"] = url(str(self._settings["STORE"]))

    def stop(self) -> None:
        for broker in self.all:
            broker.kill()


@contextlib.contextmanager
def brokers(postgres: Server, **settings: object) -> Iterator[Brokers]:
    """A set of brokers in directories that go with them. None runs at first."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        found = Brokers(Path(directory), postgres.new_database(), **settings)
        try:
            yield found
        finally:
            found.stop()


class RoundRobin:
    """A small balancer: each connection goes to the next broker that accepts it.

    Attributes:
        url: for clients.
    """

    def __init__(self) -> None:
        self.url = ""
        self._urls: list[str] = []
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def use(self, *found: BrokerProcess) -> None:
        """Balance between these from now on."""
        self._urls = [each.url for each in found]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            try:
                upstream = await self._connect()
                await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))
            finally:
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in self._urls:
            self._next += 1
            url = urlsplit(self._urls[self._next % len(self._urls)])
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(url.hostname, url.port)
        raise OSError("no broker accepts connections")

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls) -> AsyncIterator[RoundRobin]:
        balancer = cls()
        server = await asyncio.start_server(balancer._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        balancer.url = f"http://127.0.0.1:{port}"
        try:
            yield balancer
        finally:
            server.close()
            for task in balancer._tasks:
                task.cancel()
            await asyncio.gather(*balancer._tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
