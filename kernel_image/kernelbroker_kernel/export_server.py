"""Fetching a table: the gateway hands the broker's connection to the kernel, which answers on it.

The data crosses no other process than the kernel's and the broker's. The kernel listens under the
ticket's name before it announces that the table is ready.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from .contract import EXPORTS_PATH
from .errors import Refused
from .export_socket import socket_path
from .file_server import Handler

_ACCEPT_S = 10.0
"""The time that the kernel has to accept. It waits for nothing else then."""


class Export(Handler):
    """GET: the data of one ticket."""

    async def get(self, ticket: str) -> None:
        connection: Any = self.request.connection
        with socket.socket(socket.AF_UNIX) as giver:
            giver.setblocking(False)
            try:
                async with asyncio.timeout(_ACCEPT_S):
                    await asyncio.get_running_loop().sock_connect(giver, socket_path(ticket))
                socket.send_fds(giver, [b"\0"], [connection.stream.socket.fileno()])
            except OSError:
                raise Refused("not_found", "there is no export under this ticket") from None
        self.detach().close()


ROUTES = [(f"{EXPORTS_PATH}/([0-9a-f]{{32}})", Export)]
