"""Sends data to the broker over the connection that fetches it, straight from the kernel.

`Delivery` listens before the broker is told that the data is ready, and answers the one connection that the
gateway hands over (see `export_server`).
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any, Self

from .errors import Refused
from .export_socket import socket_path

FETCH_S = 30.0
"""The time that the broker has to fetch what is ready."""
SILENCE_S = 90.0
"""The time for which the broker may read nothing. It gives up on its own client earlier."""
SEND_BUFFER_BYTES = 512 * 1024
_TICKET = re.compile(r"[0-9a-f]{32}")


def is_ticket(ticket: object) -> bool:
    return isinstance(ticket, str) and _TICKET.fullmatch(ticket) is not None


_Socket: Any = socket.socket
"""Code replaces it, to forbid connections. The kernel's own go on."""
_recv_fds = socket.recv_fds


class Body:
    """The data to send. `size` is in bytes, or None if it is not known beforehand."""

    size: int | None = None

    def write(self, sink: Sink) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Delivery:
    """Data that is delivered once. Leaving the `with` block ends it, delivered or not."""

    def __init__(self, ticket: str, body: Body) -> None:
        if not is_ticket(ticket):
            raise Refused("bad_request", "the ticket is invalid")
        self._body = body
        self._path = socket_path(ticket)
        self._listener = _Socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        self._listener.bind(self._path)
        self._listener.listen(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        os.unlink(self._path)  # noqa: PTH108
        self._body.close()

    def deliver(self) -> None:
        """Wait for the connection, and send the HTTP response. Raises OSError if the connection breaks."""
        self._listener.settimeout(FETCH_S)
        accepted, _ = self._listener._accept()  # `accept` looks the class up in its module
        with _Socket(fileno=accepted) as giver:
            giver.settimeout(FETCH_S)
            _, (descriptor, *_), _, _ = _recv_fds(giver, 1, 1, socket.MSG_CMSG_CLOEXEC)
        with _Socket(fileno=descriptor) as connection:
            connection.settimeout(SILENCE_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            size = self._body.size
            framing = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\n{framing}\r\n\r\n"
            connection.sendall(head.encode())
            self._body.write(Sink(connection) if size is not None else _Chunked(connection))
            if size is None:
                connection.sendall(b"0\r\n\r\n")


class Sink:
    """A writable file, as far as pyarrow needs one."""

    closed = False

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self.connection.sendall(view)
            return view.nbytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Chunked(Sink):
    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            if view.nbytes:
                self.connection.sendall(b"%x\r\n" % view.nbytes)
                self.connection.sendall(view)
                self.connection.sendall(b"\r\n")
            return view.nbytes
