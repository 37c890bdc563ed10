"""A port on the sandbox's loopback interface, which forwards connections to the broker's proxy.

Programs connect to a proxy over TCP; the broker's proxy listens on a unix socket. Bytes are forwarded
unread, since the broker's proxy applies the rules. If one side closes, both are closed.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import bind_sockets
from tornado.tcpserver import TCPServer

from .contract import PROXY_PORT

_READ_BYTES = 64 * 1024


class Forwarder(TCPServer):
    """Serves on the loopback's `PROXY_PORT` once the event loop runs."""

    def __init__(self, proxy: Path) -> None:
        """Raises OSError."""
        super().__init__()
        self._proxy = str(proxy)
        self.add_sockets(bind_sockets(PROXY_PORT, "127.0.0.1"))

    async def handle_stream(self, stream: IOStream, _address: Any) -> None:
        stream.set_nodelay(True)
        proxy = IOStream(socket.socket(socket.AF_UNIX))
        try:
            await proxy.connect(self._proxy)  # the address of a unix socket is a path
            await asyncio.gather(_copy(stream, proxy), _copy(proxy, stream))
        except StreamClosedError:
            pass
        finally:
            proxy.close()
            stream.close()


async def _copy(source: IOStream, target: IOStream) -> None:
    """Copy until one side closes, which raises StreamClosedError."""
    while True:
        await target.write(await source.read_bytes(_READ_BYTES, partial=True))
