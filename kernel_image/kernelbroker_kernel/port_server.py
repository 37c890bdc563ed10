"""Connections to servers inside the sandbox, for the broker only."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tornado.iostream import IOStream, StreamClosedError

from .contract import PORTS_PATH, PROXY_PORT
from .errors import Refused
from .file_server import Handler

CONNECT_S = 5.0
_READ_BYTES = 64 * 1024
_HOSTS = ("127.0.0.1", "::1")
_ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n"


class Port(Handler):
    """GET with `Upgrade: tcp`: the bytes of a connection to the port."""

    async def get(self, port: str) -> None:
        number = int(port)
        if not 0 < number < 2**16 or number == PROXY_PORT:
            raise Refused("bad_request", f"{port} is no port of a server")
        if (connection := await _connect(number)) is None:
            self.set_status(502)
            self.reply({"code": "not_found", "message": f"nothing listens at port {number}"})
            return
        stream = self.detach()
        reader, writer = connection
        tasks = []
        try:
            await stream.write(_ANSWER)
            tasks = [
                asyncio.create_task(_inwards(stream, writer)),
                asyncio.create_task(_outwards(reader, stream)),
            ]
            # A server that has ended its answer has ended. A client may end its side first.
            await tasks[1]
        except (StreamClosedError, OSError):
            pass
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
            stream.close()


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    for host in _HOSTS:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(host, port, limit=_READ_BYTES)
    return None


async def _inwards(stream: IOStream, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            writer.write(await stream.read_bytes(_READ_BYTES, partial=True))
            await writer.drain()
    except (StreamClosedError, OSError):
        with suppress(OSError):
            writer.close()


async def _outwards(reader: asyncio.StreamReader, stream: IOStream) -> None:
    while data := await reader.read(_READ_BYTES):
        await stream.write(data)


ROUTES = [(f"{PORTS_PATH}/([0-9]{{1,5}})", Port)]
