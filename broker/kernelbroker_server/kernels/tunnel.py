"""A connection to a server inside a sandbox, through its gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from kernelbroker_kernel.contract import PORTS_PATH

from .endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from .transfer import TransferFailed

BUFFER_BYTES = 64 * 1024
"""Of each direction, and of the head of an answer."""
_CONNECT_S = 15.0


class NothingListens(Exception):
    """There is no server at the port."""


class Tunnel(NamedTuple):
    """The two directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@contextlib.asynccontextmanager
async def tunnel(endpoint: Endpoint, port: int) -> AsyncIterator[Tunnel]:
    """Connect to a port of the sandbox's loopback interface.

    Raises:
        NothingListens: nothing listens there.
        TransferFailed: the gateway cannot be reached.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await _dial(endpoint)
                lines = [f"GET {PORTS_PATH}/{port} HTTP/1.1", "Host: gateway"]
                lines += [f"{name}: {value}" for name, value in endpoint.headers.items()]
                lines += ["Connection: Upgrade", "Upgrade: tcp", "", ""]
                writer.write("\r\n".join(lines).encode())
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError as exc:
            raise TransferFailed("the sandbox did not connect in time") from exc
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
            raise TransferFailed(f"the sandbox did not connect: {exc}") from exc
        status = head[:64].split(b" ")[1:2]
        if status == [b"502"]:
            raise NothingListens
        if status != [b"101"]:
            raise TransferFailed("the sandbox did not connect")
        yield Tunnel(reader, writer)
    finally:
        if writer is not None:
            writer.transport.abort()


async def _dial(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    match endpoint:
        case UnixEndpoint(path=path):
            return await asyncio.open_unix_connection(str(path), limit=BUFFER_BYTES)
        case TcpEndpoint(host=host, port=port, tls=tls):
            return await asyncio.open_connection(host, port, limit=BUFFER_BYTES, ssl=tls)
