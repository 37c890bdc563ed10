"""Accepts connections as long as there are descriptors for what runs, and pauses when there are not.

Tornado's own way calls `accept` again at once when the process has no more descriptors, which fills the log
and a processor until there are some again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)

_AT_ONCE = 128
_PAUSE_S = 0.5
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESERVED = 128
"""Descriptors for the cells of connected clients, at most a quarter of all."""
_TOLD_EVERY_S = 60.0
_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\n\r\nThis broker has too many connections; try again later.\n"
)


class Acceptor:
    """Accepts the connections of one listening socket, until `stop`.

    Args:
        accepted: called with a connection and the address of its client.
        answers: a refused connection gets a status of HTTP before it is closed.
    """

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket, Any], None],
        *,
        answers: bool,
    ) -> None:
        self._listener = listener
        self._accepted = accepted
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._spare: int | None = _open_spare()
        """Given up for a moment, so that a client that cannot be served learns it."""
        self._told_at = -_TOLD_EVERY_S
        self._loop.add_reader(listener, self._accept)

    def stop(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):  # others must have their turn
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                self._refuse_one()
                self._rest(str(error))
                return
            # The system gives the lowest number that is free.
            if connection.fileno() >= _most_connections():
                self._refuse(connection)
                self._rest("the rest of the descriptors is for what runs")
                return
            self._accepted(connection, address)

    def _refuse_one(self) -> None:
        if self._spare is None:
            return
        os.close(self._spare)
        self._spare = None
        with suppress(OSError):
            self._refuse(self._listener.accept()[0])

    def _refuse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            if self._answers:
                connection.send(_ANSWER)
                connection.shutdown(socket.SHUT_WR)

    def _rest(self, why: str) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TOLD_EVERY_S:
            self._told_at = now
            logger.error(
                "too many connections, new ones are refused: %s. "
                "Raise the limit of open files (LimitNOFILE)",
                why,
            )
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if self._spare is None:
            with suppress(OSError):  # there is still a shortage
                self._spare = _open_spare()
        self._loop.add_reader(self._listener, self._accept)


def _open_spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _most_connections() -> int:
    """The number from which on descriptors are not for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - min(_RESERVED, soft // 4)
