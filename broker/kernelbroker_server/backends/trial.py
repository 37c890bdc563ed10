"""What a sandbox must be able to do, and must not, tried in real ones before any session gets one.

Two programs, one for each way to reach a gateway, run by the image's own Python in the gateway's
place; and what is asked of the second. The backend launches them as it launches everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

UNIX_TRIAL = (
    "-c",
    "import socket, sys; giver = socket.socket(socket.AF_UNIX); giver.connect(sys.argv[2]);"
    "assert socket.recv_fds(giver, 1, 1)[1], 'no socket came'; open('/data/trial', 'x')",
)
"""Runs Python, takes a descriptor from us, writes to its workspace, and ends."""

TCP_TRIAL = (
    "-c",
    """
import json, socket, sys
open("/data/trial", "x")
host, port = sys.argv[2].rsplit(":", 1)
listener = socket.create_server((host, int(port)))
def reached(address):
    try:
        socket.create_connection(address, 2).close()
    except OSError:
        return False
    return True
while True:
    connection, _ = listener.accept()
    line = connection.makefile().readline()
    if line:
        answer = [reached(tuple(address)) for address in json.loads(line)]
        connection.sendall(json.dumps(answer).encode() + b"\\n")
""",
)
"""Tells which addresses it reaches, to whoever asks it on its port."""


async def reached_from(trial: tuple[str, int], addresses: list[tuple[str, int]]) -> list[bool]:
    """Which addresses the sandbox with `TCP_TRIAL` at `trial` reaches. Raises OSError, ValueError."""
    reader, writer = await asyncio.open_connection(*trial)
    try:
        writer.write(json.dumps(addresses).encode() + b"\n")
        verdicts = json.loads(await reader.readline())
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return [verdict is True for verdict in verdicts]


@contextmanager
def listening_on(host: str) -> Iterator[tuple[str, int]]:
    """A port of the host's that takes connections, for a sandbox to try. Raises OSError."""
    with socket.create_server((host, 0)) as listener:
        yield listener.getsockname()[:2]
