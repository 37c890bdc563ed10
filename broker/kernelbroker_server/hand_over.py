"""A broker hands its listening sockets over to its successor, through a socket in the state directory.

The successor connects and waits. The running broker stops accepting, leaves its sessions, releases the
state, and sends its listening sockets, in whose backlogs connections wait meanwhile. When the successor
serves, it says so. If it ends before, the earlier broker goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from .config import ConfigError

_NAME = "take-over"
_MAX_SOCKETS = 64
_SOCKETS, _SERVES = b"S", b"1"
_CREDENTIALS = struct.Struct("3i")


class Listener:
    """Waits for a successor, from its creation to `close`.

    Attributes:
        asked: set when one has connected.
    """

    def __init__(self, directory: Path) -> None:
        """Raises OSError. The caller has the lock of the directory."""
        self.asked = asyncio.Event()
        self._directory = directory
        self._successor: Successor | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        try:
            (directory / _NAME).unlink(missing_ok=True)  # of a broker that was killed
            with short_path(directory, _NAME) as path:
                self._listener.bind(path)
            (directory / _NAME).chmod(0o600)
            self._listener.listen(1)
        except BaseException:
            self._listener.close()
            raise
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> Successor | None:
        """Accept no successor any more. Returns the one that has connected."""
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            with contextlib.suppress(OSError):
                (self._directory / _NAME).unlink()
        return self._successor

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if self._successor is None and _CREDENTIALS.unpack(peer)[1] in (0, os.getuid()):
                self._successor = Successor(connection)
                self.asked.set()
            else:
                connection.close()


class Successor:
    """The broker that takes over.

    Attributes:
        serves: it has said so.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.serves = False
        self._connection = connection

    async def give(self, sockets: Sequence[socket.socket]) -> None:
        """Send the listening sockets, once the state is released. Waits until it serves, or has ended."""
        try:
            socket.send_fds(self._connection, [_SOCKETS], [each.fileno() for each in sockets])
            said = await asyncio.get_running_loop().sock_recv(self._connection, 1)
            self.serves = said == _SERVES
        except OSError:
            self.serves = False
        finally:
            self.close()

    def close(self) -> None:
        self._connection.close()


class Predecessor:
    """The broker that is taken over from."""

    def __init__(self, directory: Path) -> None:
        """Ask the broker that has this state directory. Raises ConfigError if there is none."""
        self._directory = directory
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(directory, _NAME) as path:
                self._connection.connect(path)
        except OSError as exc:
            self._connection.close()
            raise ConfigError(
                f"no broker that could be taken over runs with the state_dir {directory} "
                f"({exc.strerror}). Start without --take-over. A broker can be taken over if it has "
                'shutdown = "adopt" and a sandbox.orphan_grace'
            ) from exc
        self._connection.setblocking(False)

    async def sockets(self) -> list[socket.socket]:
        """Wait until it has released its state. Returns its listening sockets. Raises ConfigError."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._connection, readable.set)
        try:
            await readable.wait()
            said, descriptors, _, _ = socket.recv_fds(self._connection, 1, _MAX_SOCKETS)
        except OSError:
            said, descriptors = b"", []
        finally:
            loop.remove_reader(self._connection)
        if said != _SOCKETS:
            raise ConfigError(
                f"the broker with the state_dir {self._directory} ended, and handed nothing over. "
                "Start without --take-over"
            )
        sockets = [socket.socket(fileno=each) for each in descriptors]
        for each in sockets:
            each.setblocking(False)  # `dup` would make them block, for the earlier broker, too
        return sockets

    def confirm(self) -> None:
        """Tell the earlier broker that it can end."""
        with contextlib.suppress(OSError):
            self._connection.send(_SERVES)

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def short_path(directory: Path, name: str) -> Iterator[str]:
    """A path of a socket that is short enough for the system, however long the directory's is."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
