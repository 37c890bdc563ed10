"""Copies of the stored state for backups, while the broker has its database to itself.

`kernelbroker backup` connects to a socket in the state directory. The broker copies its database into a
directory beside it, sends the directory's name, and removes it when the connection ends. Only root and the
broker's user can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelbroker.protocol.errors import Unavailable

from .api.routes import Route
from .hand_over import short_path
from .sessions.durable_store import DurableStore
from .sessions.state_directory import DATABASE
from .supervisor import Supervisor

_SOCKET = "copies"
_PREFIX = ".copy-"
_CREDENTIALS = struct.Struct("3i")
_MAX_ANSWER = 4096


class NoCopy(Exception):
    """The broker cannot copy its state. The message says why."""


class StateCopies:
    """Serves the socket: a surface without paths."""

    routes: Sequence[Route] = ()

    def __init__(self, directory: Path, store: DurableStore) -> None:
        self._directory = directory
        self._store = store
        self._one_at_a_time = asyncio.Lock()

    def start(self, supervisor: Supervisor) -> None:
        """Begin to serve."""
        for left in self._directory.glob(f"{_PREFIX}*"):  # by a broker that was killed
            shutil.rmtree(left, ignore_errors=True)
        supervisor.start("copies of the state", self._serve)

    async def _serve(self) -> None:
        (self._directory / _SOCKET).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        with short_path(self._directory, _SOCKET) as path:
            listener.bind(path)
        (self._directory / _SOCKET).chmod(0o600)
        server = await asyncio.start_unix_server(self._answer, sock=listener)
        try:
            await server.serve_forever()
        finally:
            (self._directory / _SOCKET).unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            if _uid(writer) not in (0, os.geteuid()):
                return
            async with self._one_at_a_time:
                copy = self._directory / f"{_PREFIX}{secrets.token_hex(4)}"
                try:
                    answer = await self._copy(copy)
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
                    await reader.read()  # until the other side has what it wants
                finally:
                    await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)

    async def _copy(self, copy: Path) -> dict[str, str]:
        try:
            await asyncio.to_thread(copy.mkdir, 0o700)
            await self._store.copy_to(copy / DATABASE)
        except (OSError, Unavailable) as exc:
            return {"error": str(exc)}
        return {"copy": copy.name}


@contextlib.contextmanager
def copied(directory: Path) -> Iterator[Path]:
    """A directory with a copy of the database of the broker that runs with this state directory.

    Blocks. The copy is removed at the end of the block.

    Raises:
        NoCopy
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with short_path(directory, _SOCKET) as path:
                connection.connect(path)
            line = connection.makefile("rb").readline(_MAX_ANSWER)
            answer = json.loads(line) if line else {"error": "it refused this user, or ended"}
        except (OSError, ValueError) as exc:
            raise NoCopy(
                f"the broker with the state_dir {directory} does not answer: {exc}"
            ) from exc
        if "copy" not in answer:
            raise NoCopy(f"the broker cannot copy its state: {answer.get('error')}")
        yield directory / answer["copy"]


def _uid(writer: asyncio.StreamWriter) -> int:
    connection = writer.get_extra_info("socket")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(peer)[1])
