"""A table in one of the formats, written to the connection that fetches it.

`Export` prepares the data until it is clear that the export will work; `Delivery` sends it. Arrow data is
written from where it is in memory, without a copy, and its size is known beforehand. CSV and JSON are made
in pieces.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import text_export, to_arrow
from .changes import Changes
from .delivery import Body, Delivery, Sink, is_ticket
from .errors import Refused
from .introspection import type_name
from .pages import some_rows
from .safe_repr import safe_text
from .time_limit import TimeIsUp, time_limit

PREPARE_S = 300.0
"""The time for preparing an export, which may run code of the user's classes."""
_ERROR_CHARS = 500


class Export(Delivery):
    """One variable, ready to be delivered once. Leaving the `with` block ends it, delivered or not.

    The constructor raises Refused.
    """

    def __init__(
        self,
        names: Mapping[str, Any],
        name: str,
        format: str,
        ticket: str,
        *,
        lossy: bool = False,
        offset: int = 0,
        limit: int | None = None,
    ) -> None:
        if not is_ticket(ticket) or format not in _BODIES:
            raise Refused("bad_request", "the options of the export are invalid")
        if name not in names:
            raise Refused("not_found", f"there is no variable {name}")
        try:
            with time_limit(PREPARE_S):
                value = names[name]
                if offset or limit is not None:
                    value = some_rows(value, offset, limit)
                body = _BODIES[format](value, Changes(are_allowed=lossy))
        except TimeIsUp:
            reason = f"it was not ready after {PREPARE_S:g} s"
            raise Refused("conflict", f"{name} cannot be sent as {format}: {reason}") from None
        except (Refused, KeyboardInterrupt):
            raise
        except BaseException as error:  # raised by a library or a user's class
            reason = safe_text(error, _ERROR_CHARS) or type_name(error)
            raise Refused("conflict", f"{name} cannot be sent as {format}: {reason}") from None
        super().__init__(ticket, body)


class _Arrow(Body):
    """An Arrow IPC stream."""

    def __init__(self, value: object, changes: Changes) -> None:
        self._source = to_arrow.arrow_table(value, changes)
        if not to_arrow.is_stream(self._source):
            import pyarrow

            counter = pyarrow.MockOutputStream()
            self._write(counter)
            self.size = counter.size()

    def write(self, sink: Sink) -> None:
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


class _Parquet(Body):
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

    def write(self, sink: Sink) -> None:
        self._file.seek(0)
        sink.connection.sendfile(self._file)

    def close(self) -> None:
        self._file.close()


class _Pieces(Body):
    """Text, made while it is sent. The first piece is made at once, so that errors are raised early."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = itertools.chain([next(pieces)], pieces)

    def write(self, sink: Sink) -> None:
        for piece in self._pieces:
            sink.write(piece.encode("utf-8", "backslashreplace"))


_BODIES: dict[str, Callable[[object, Changes], Body]] = {
    "arrow": _Arrow,
    "parquet": _Parquet,
    "csv": lambda value, _: _Pieces(text_export.csv_pieces(value)),
    "json": lambda value, _: _Pieces(text_export.json_pieces(value)),
}
