"""The gateway's server refuses brokers with a lower epoch than it has seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kernelbroker_kernel.contract import EPOCH_HEADER
from kernelbroker_kernel.fencing import FencedServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from tests.support.waiting import DEADLINE_S


class Hello(RequestHandler):
    def get(self) -> None:
        self.write("hello")


class Wait(RequestHandler):
    async def get(self) -> None:
        self.write("begun")
        await self.flush()
        await asyncio.Event().wait()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = FencedServer(Application([("/", Hello), ("/wait", Wait)]))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    yield sockets[0].getsockname()[1]
    server.stop()
    await server.close_all_connections()


class Client:
    """One connection of a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def get(self, path: str, epoch: int | str | None) -> bytes:
        """Return the status line; empty if the connection is closed."""
        said = "" if epoch is None else f"{EPOCH_HEADER}: {epoch}\r\n"
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{said}\r\n".encode())
        async with asyncio.timeout(DEADLINE_S):
            return (await self.reader.read(4096)).split(b"\r\n")[0]

    async def closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            while await self.reader.read(4096):
                pass
        self.writer.close()
        return True


async def test_lower_epochs_are_refused(port: int) -> None:
    """After a request with a higher epoch lower ones get 409, and their open connections end."""
    first, waiting = await Client.connect(port), await Client.connect(port)
    assert b"200" in await first.get("/", None)
    assert b"200" in await waiting.get("/wait", "garbage")  # counts as 0
    second = await Client.connect(port)
    assert b"200" in await second.get("/", 5)
    assert await first.closed()
    assert await waiting.closed()
    for epoch in (None, 0, 4):
        late = await Client.connect(port)
        assert b"409" in await late.get("/", epoch)
        assert await late.closed()
    assert b"200" in await second.get("/", 5)
    third = await Client.connect(port)
    assert b"200" in await third.get("/", 7)
    assert await second.closed()
    assert b"200" in await third.get("/", 7)
    third.writer.close()
