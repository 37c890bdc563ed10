"""Fetching a table: the gateway hands the broker's connection to the kernel, which answers itself.

So a table crosses no process but its own and the broker's. The kernel listens under the ticket's name
from the moment on at which it says that the table is ready.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from .contract import EXPORTS_PATH
from .file_server import Handler
from .refusals import Refused

_ACCEPT_S = 10.0
"""How long the kernel may take to accept; it waits for nothing else."""


def socket_path(ticket: str) -> str:
    """Where the kernel listens, in the directory that it shares with the gateway."""
    return os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], f"export-{ticket}")  # noqa: PTH118


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
