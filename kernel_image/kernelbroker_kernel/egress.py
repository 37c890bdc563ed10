"""The way from programs to the broker's proxy: a port on the sandbox's own loopback.

Programs speak to a proxy over TCP; the broker's is behind a unix socket. Bytes are passed on between
the two, unread: what may be reached is decided at the other end. Who hangs up on one side ends both.
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
    """Serves on the loopback's `PROXY_PORT`, as soon as the event loop runs."""

    def __init__(self, proxy: Path) -> None:
        """Raises OSError."""
        super().__init__()
        self._proxy = str(proxy)
        self.add_sockets(bind_sockets(PROXY_PORT, "127.0.0.1"))

    async def handle_stream(self, stream: IOStream, _address: Any) -> None:
        stream.set_nodelay(True)
        proxy = IOStream(socket.socket(socket.AF_UNIX))
        try:
            await proxy.connect(self._proxy)  # of a unix socket: a path
            await asyncio.gather(_copy(stream, proxy), _copy(proxy, stream))
        except StreamClosedError:
            pass
        finally:
            proxy.close()
            stream.close()


async def _copy(source: IOStream, target: IOStream) -> None:
    """Until one of them closes, which is told by StreamClosedError."""
    while True:
        await target.write(await source.read_bytes(_READ_BYTES, partial=True))
