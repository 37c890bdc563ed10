"""The broker's application on a real socket, and clients that see every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.codec import decode_incoming, encode
from kernelbroker.protocol.events import Event
from kernelbroker.protocol.messages import Closed, Done, ErrorReply, Opened
from kernelbroker_server.api.base import Service
from kernelbroker_server.api.routes import Route, make_application
from kernelbroker_server.api.server import BrokerServer
from kernelbroker_server.backends.backend_set import BackendSet
from kernelbroker_server.service.operations import Operations
from kernelbroker_server.telemetry.history import History
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import Tenants
from tornado.netutil import bind_sockets
from websockets.asyncio.client import ClientConnection, connect

from .waiting import DEADLINE_S
from .world import World

TOKEN = "the-token"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        assert self.headers["content-type"].startswith("application/json"), self.headers
        return json.loads(self.body, parse_constant=refuse)

    @property
    def error(self) -> Any:
        """The error of the answer, which must have the documented form."""
        assert self.status >= 400
        assert set(self.json) == {"error"}
        error = self.json["error"]
        assert error["message"]
        assert error["request_id"] == self.headers["x-request-id"]
        return error


class Exchange:
    """A request whose answer is read in pieces."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    async def head(self) -> None:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        pairs = (line.partition(":") for line in lines[1:] if line)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """Read the next piece of a streamed answer; empty at its end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        data = await self._reader.readexactly(size + 2)
        return data[:-2]

    async def body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            return b"".join([piece async for piece in self._chunks()])
        return await self._reader.readexactly(int(self.headers.get("content-length", 0)))

    async def _chunks(self) -> AsyncIterator[bytes]:
        while piece := await self.chunk():
            yield piece

    async def rest(self) -> bytes:
        """Read until the broker closes the connection."""
        return await self._reader.read()

    def hang_up(self) -> None:
        """Abort the connection, as a crashing client does."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Socket:
    """A WebSocket client of one session."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, op: str, **fields: Any) -> None:
        await self.connection.send(encode({"op": op, **fields}).decode())

    async def get(self) -> Any:
        """Return the next event or reply."""
        async with asyncio.timeout(DEADLINE_S):
            message = decode_incoming(await self.connection.recv())
        assert message is not None
        return message

    async def open(self, **options: Any) -> Opened:
        await self.send("open", **options)
        opened = await self.get()
        assert isinstance(opened, Opened), opened
        return opened

    async def until(self, kind: type) -> Any:
        """Return the next message of this kind, and drop those before it."""
        while not isinstance(message := await self.get(), kind):
            pass
        return message

    async def events(self, execution_id: str) -> list[Event]:
        """Return the remaining events of an execution, up to its result."""
        found: list[Event] = []
        while True:
            message = await self.get()
            if not isinstance(message, Done | ErrorReply | Closed | Opened):
                assert message.execution_id == execution_id
                found.append(message)
                if type(message).__name__ == "Result":
                    return found

    async def closed(self) -> tuple[int | None, str | None]:
        """Wait for the end of the connection; returns its code and reason."""
        async with asyncio.timeout(DEADLINE_S):
            await self.connection.wait_closed()
        return self.connection.close_code, self.connection.close_reason


@dataclass
class Api:
    world: World
    port: int
    service: Service

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | Any = b"",
        headers: dict[str, str] | None = None,
        token: str | None = TOKEN,
        length: int | None = None,
        chunked: bool = False,
    ) -> AsyncIterator[Exchange]:
        """Send a request, and read the head of its answer."""
        if not isinstance(body, bytes):
            body = encode(body)
        lines = [f"{method} {path} HTTP/1.1", "Host: broker"]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        else:
            lines.append(f"Content-Length: {len(body) if length is None else length}")
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        exchange = Exchange(reader, writer)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            async with asyncio.timeout(DEADLINE_S):
                await exchange.head()
            yield exchange
        finally:
            await exchange.close()

    async def ask(self, method: str, path: str, body: bytes | Any = b"", **options: Any) -> Answer:
        """Send a request, and return the whole answer."""
        async with self.exchange(method, path, body, **options) as exchange:
            async with asyncio.timeout(DEADLINE_S):
                data = b"" if exchange.status == 204 else await exchange.body()
            return Answer(exchange.status, exchange.headers, data)

    @asynccontextmanager
    async def socket(self, **options: Any) -> AsyncIterator[Socket]:
        url = f"ws://127.0.0.1:{self.port}/api/v1/ws"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        settings = {"compression": None, "proxy": None, "close_timeout": 1, **options}
        async with connect(url, additional_headers=headers, **settings) as connection:
            yield Socket(connection)


@asynccontextmanager
async def serving(
    world: World,
    *,
    keyring: Keyring | None = None,
    tls: ssl.SSLContext | None = None,
    surfaces: Sequence[Route] = (),
    **options: Any,
) -> AsyncIterator[Api]:
    pools = {"default": world.pool}
    options = {"operations": Operations(world.tenants, pools, History(), None), **options}
    service = Service(
        store=world.store,
        tenants=world.tenants,
        pools=pools,
        backends=BackendSet({"fake": world.backend}, "fake"),
        keyring=keyring or Keyring(Tenants({}), TOKEN),
        version="0",
        **options,
    )
    server = BrokerServer(make_application(service, surfaces), service.unauthenticated, tls)
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    try:
        yield Api(world, sockets[0].getsockname()[1], service)
    finally:
        server.stop()
        for websocket in list(service.websockets):
            websocket.close(1001)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await server.close_all_connections()
