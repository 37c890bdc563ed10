"""The broker makes every sandbox's listening socket itself, where no sandbox can see its name.

User code that could name the socket could put another file in its place, a symbolic link to the
container engine's socket for one, and the broker would talk to that. So the gateway gets a descriptor
and never a name: a jail by inheritance, a container by a `Handover`. It also means that to connect is
never too early: who does waits in the socket's queue until the gateway is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from .base import LaunchError

_BACKLOG = 64
SUN_PATH_BYTES = 108
"""Room for the path of a unix socket, and a zero byte behind it (unix(7))."""


def listen(path: Path, owner: int | None = None) -> socket.socket:
    """A unix socket that listens at `path`, for the broker, or for the user `owner` alone.

    Raises LaunchError or OSError.
    """
    if len(os.fsencode(path)) >= SUN_PATH_BYTES:
        raise LaunchError(f"The socket's path {path} is too long for Linux: set a shorter run_dir")
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        if owner is not None:
            os.chown(path, owner, owner)
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class Handover:
    """A socket that gives away the listening one, once, to the first who connects.

    That is the gateway: no user code runs before it. Afterwards nobody listens here any more, and
    the broker has no part in the listening socket, which so closes with the gateway. The connection
    stays, unused: when it closes, the broker has died, and the gateway ends.
    """

    def __init__(self, path: Path, listener: socket.socket, owner: int) -> None:
        """Takes the listener over. `owner` is the user who may connect. Raises LaunchError, OSError."""
        self._path = path
        self._listener = listener
        self._taker: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self._giver = listen(path, owner)
        except BaseException:
            listener.close()
            raise
        self._giver.setblocking(False)
        self._loop.add_reader(self._giver, self._give)

    def close(self) -> None:
        """Calling it twice does no harm."""
        self._stop_giving()
        if self._taker is not None:
            self._taker.close()

    def _give(self) -> None:
        with contextlib.suppress(OSError):  # it has gone already, and its end will be told
            self._taker, _ = self._giver.accept()
            socket.send_fds(self._taker, [b"1"], [self._listener.fileno()])
        self._stop_giving()

    def _stop_giving(self) -> None:
        if self._giver.fileno() != -1:
            self._loop.remove_reader(self._giver)
            self._giver.close()
            self._listener.close()
            self._path.unlink(missing_ok=True)
