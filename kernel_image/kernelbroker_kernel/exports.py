"""A table in one of the formats, written to the connection that fetches it.

`Export` prepares the data until it is clear that the export will work, listens, and writes to the one
connection that it receives (see `export_server`). Arrow data is written from where it is in memory,
without a copy, and its size is known beforehand. CSV and JSON are made in pieces.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from . import text_export, to_arrow
from .changes import Changes
from .errors import Refused
from .export_socket import socket_path
from .introspection import type_name
from .safe_repr import safe_text
from .time_limit import TimeIsUp, time_limit

PREPARE_S = 300.0
"""The time for preparing an export, which may run code of the user's classes."""
FETCH_S = 30.0
"""The time that the broker has to fetch an export that is ready."""
SILENCE_S = 90.0
"""The time for which the broker may read nothing. It gives up on its own client earlier."""
SEND_BUFFER_BYTES = 512 * 1024
_TICKET = re.compile(r"[0-9a-f]{32}")
_ERROR_CHARS = 500


class Export:
    """One variable, ready to be delivered once. Leaving the `with` block ends it, delivered or not.

    The constructor raises Refused.
    """

    def __init__(
        self, names: Mapping[str, Any], name: str, format: str, ticket: str, *, lossy: bool = False
    ) -> None:
        if not _TICKET.fullmatch(ticket) or format not in _BODIES:
            raise Refused("bad_request", "the options of the export are invalid")
        if name not in names:
            raise Refused("not_found", f"there is no variable {name}")
        try:
            with time_limit(PREPARE_S):
                self._body = _BODIES[format](names[name], Changes(are_allowed=lossy))
        except TimeIsUp:
            reason = f"it was not ready after {PREPARE_S:g} s"
            raise Refused("conflict", f"{name} cannot be sent as {format}: {reason}") from None
        except (Refused, KeyboardInterrupt):
            raise
        except BaseException as error:  # raised by a library or a user's class
            reason = safe_text(error, _ERROR_CHARS) or type_name(error)
            raise Refused("conflict", f"{name} cannot be sent as {format}: {reason}") from None
        self._path = socket_path(ticket)
        self._listener = socket.socket(socket.AF_UNIX)

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
        giver, _ = self._listener.accept()
        with giver:
            giver.settimeout(FETCH_S)
            _, (descriptor, *_), _, _ = socket.recv_fds(giver, 1, 1, socket.MSG_CMSG_CLOEXEC)
        with socket.socket(fileno=descriptor) as connection:
            connection.settimeout(SILENCE_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            size = self._body.size
            framing = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\n{framing}\r\n\r\n"
            connection.sendall(head.encode())
            self._body.write(_Plain(connection) if size is not None else _Chunked(connection))
            if size is None:
                connection.sendall(b"0\r\n\r\n")


class _Plain:
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


class _Chunked(_Plain):
    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            if view.nbytes:
                self.connection.sendall(b"%x\r\n" % view.nbytes)
                self.connection.sendall(view)
                self.connection.sendall(b"\r\n")
            return view.nbytes


class _Body:
    """The data to send. `size` is in bytes, or None if it is not known beforehand."""

    size: int | None = None

    def write(self, sink: _Plain) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class _Arrow(_Body):
    """An Arrow IPC stream."""

    def __init__(self, value: object, changes: Changes) -> None:
        self._source = to_arrow.arrow_table(value, changes)
        if not to_arrow.is_stream(self._source):
            import pyarrow

            counter = pyarrow.MockOutputStream()
            self._write(counter)
            self.size = counter.size()

    def write(self, sink: _Plain) -> None:
        import pyarrow

        self._write(pyarrow.PythonFile(sink, mode="w"))

    def _write(self, sink: Any) -> None:
        import pyarrow

        with pyarrow.ipc.new_stream(sink, self._source.schema) as writer:
            if to_arrow.is_stream(self._source):
                for batch in self._source:
                    writer.write_batch(batch)
            else:
                writer.write_table(self._source)


class _Parquet(_Body):
    """Parquet is not written sequentially, so the file is made first, in memory."""

    def __init__(self, value: object, changes: Changes) -> None:
        from pyarrow import parquet

        table = to_arrow.arrow_table(value, changes)
        if to_arrow.is_stream(table):
            table = table.read_all()
        self._file = os.fdopen(os.memfd_create("table"), "w+b")
        try:
            parquet.write_table(table, self._file)
            self._file.flush()
            self.size = os.fstat(self._file.fileno()).st_size
        except BaseException:
            self._file.close()
            raise

    def write(self, sink: _Plain) -> None:
        self._file.seek(0)
        sink.connection.sendfile(self._file)

    def close(self) -> None:
        self._file.close()


class _Pieces(_Body):
    """Text, made while it is sent. The first piece is made at once, so that errors are raised early."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = itertools.chain([next(pieces)], pieces)

    def write(self, sink: _Plain) -> None:
        for piece in self._pieces:
            sink.write(piece.encode("utf-8", "backslashreplace"))


_BODIES: dict[str, Callable[[object, Changes], _Body]] = {
    "arrow": _Arrow,
    "parquet": _Parquet,
    "csv": lambda value, _: _Pieces(text_export.csv_pieces(value)),
    "json": lambda value, _: _Pieces(text_export.json_pieces(value)),
}
