"""The listening sockets of sandboxes, which the broker creates in directories that no sandbox sees.

If user code could see the name of the socket, it could replace it, for example by a symbolic link to the
container engine's socket, and the broker would connect to that. Therefore the gateway gets descriptors:
in a jail it inherits the listening socket; in a container it gets each connection from a `Handover`. The
broker can connect at any time: connections wait in the socket's queue until the gateway accepts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from .base import LaunchError

_BACKLOG = 64
_POLL_S = 0.02
SUN_PATH_BYTES = 108
"""Room for the path of a unix socket, and a zero byte behind it (unix(7))."""
_CHANNEL_BYTES = 8192


def listen(path: Path, owner: int | None = None) -> socket.socket:
    """Return a unix socket that listens at `path`, for the broker or only for the user `owner`.

    Raises:
        LaunchError: the path is too long.
        OSError: the socket could not be made.
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
    """Passes the connections of a listening socket to the gateway, over a socket that it connects to.

    The gateway is the first to connect, since no user code runs before it; further connections are refused.
    The connections are passed, not the listening socket, because gVisor accepts no connections on a socket
    of the host. If the broker dies, the channel to the gateway closes, and the gateway ends, or connects to
    the next broker. Then user code could be first, and answer in place of its own session's gateway. It
    could do that anyway, since it runs as the same user in the same container.
    """

    def __init__(self, path: Path, listener: socket.socket, owner: int) -> None:
        """Start to listen at `path`, and take ownership of the listener.

        Args:
            owner: the user who may connect to `path`.

        Raises:
            LaunchError: the path is too long.
            OSError: the socket could not be made.
        """
        self._path = path
        self._listener = listener
        try:
            self._entrance = listen(path, owner)
        except BaseException:
            listener.close()
            raise
        self._listener.setblocking(False)
        self._entrance.setblocking(False)
        self._task = asyncio.create_task(self._hand_over(), name="handover")
        self._task.add_done_callback(lambda _: self._close_sockets())  # even if it never ran

    def close(self) -> None:
        """Refuse further connections and close the channel. Calling it twice does no harm."""
        self._task.cancel()

    async def closed(self) -> None:
        """Wait until the sockets are closed, after `close` or the gateway's end."""
        await asyncio.wait([self._task])

    async def _hand_over(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # the gateway has ended; the engine reports that
            channel, _ = await loop.sock_accept(self._entrance)
            with channel:
                self._close_entrance()
                # A small buffer bounds the descriptors that the gateway has not received.
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BYTES)
                while True:
                    connection, _ = await loop.sock_accept(self._listener)
                    with connection:
                        await _writable(channel)
                        socket.send_fds(channel, [b"1"], [connection.fileno()])

    def _close_sockets(self) -> None:
        self._listener.close()
        self._close_entrance()

    def _close_entrance(self) -> None:
        if self._entrance.fileno() != -1:
            self._entrance.close()
            self._path.unlink(missing_ok=True)


async def _writable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(channel, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(channel)


async def answers(host: str, port: int) -> None:
    """Try to connect until the gateway listens."""
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return
