"""Makes a DataFrame of pandas or polars, or a pyarrow Table, of the Arrow stream that the broker sends.

The data is received into one buffer, and the table is made from there. It comes out of a sandbox: its
size is bounded (see `arrow_limits.py`), and its offsets are validated before they are followed.
`arrow_to_pandas.py` makes the DataFrame of pandas.
"""

from __future__ import annotations

import asyncio
import importlib
import struct
import warnings
from typing import Any

from . import arrow_limits, arrow_to_pandas
from .http_request import HTTPRequest
from .protocol.errors import ConnectionLost, ProtocolError

_WARNED_CHANGES = 10
_UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError),
    *(struct.error, MemoryError),
    RecursionError,  # of JSON
)
"""What pyarrow and pandas raise for invalid data, besides pyarrow's own errors."""
_NEEDED = {"pandas": ("pyarrow", "pandas"), "arrow": ("pyarrow",), "polars": ("pyarrow", "polars")}


class LossyTableWarning(UserWarning):
    """A table that was fetched with `lossy=True` differs from the original.

    Attributes:
        changes: a dict for each change: `part` is `column`, `row labels`, `column labels` or `attrs`,
            `column` is the name of the column as text or None, and `change` says what was changed.
    """

    def __init__(self, message: str, changes: list[dict[str, str | None]]) -> None:
        super().__init__(message)
        self.changes = changes


def expect(format: str) -> None:
    """Raises ImportError if a package is not installed, ValueError for an unknown format."""
    if format not in _NEEDED:
        raise ValueError(f"format is one of {', '.join(_NEEDED)}, not {format!r}")
    for module in _NEEDED[format]:
        try:
            importlib.import_module(module)
        except ImportError as exc:
            install = module if module == "polars" else "'kernelbroker[pandas]'"
            raise ImportError(f"tables need {module}: pip install {install}") from exc


async def receive(request: HTTPRequest, format: str, max_bytes: int) -> Any:
    """Send the request, and make a table of the answer.

    Raises:
        TooLarge: the table takes more than `max_bytes`.
        ProtocolError: the answer is not a table.
        KernelBrokerError: as `Session.table`.
    """
    import pyarrow

    await request.begin()
    await request.answer()
    length = request.headers.get("Content-Length")
    buffer: Any
    if length is not None:
        arrow_limits.check_size(int(length), max_bytes)
        try:
            buffer = pyarrow.allocate_buffer(int(length))
        except (MemoryError, OverflowError) as exc:
            raise ProtocolError(f"the kernel announced a table of {length} bytes: {exc}") from exc
        done = await request.read_into(memoryview(buffer).cast("B"))
        if done < int(length):
            raise ConnectionLost(f"the table broke off after {done:,} of {int(length):,} bytes")
    else:
        sink = pyarrow.BufferOutputStream()
        while piece := await request.read():
            sink.write(piece)
            arrow_limits.check_size(sink.tell(), max_bytes)
        buffer = sink.getvalue()
    return await asyncio.to_thread(read_table, buffer, format, max_bytes)


def read_table(buffer: Any, format: str, max_bytes: int) -> Any:
    """The table in `format` of a buffer that holds an Arrow stream.

    Warns with `LossyTableWarning` if the kernel changed something. Raises as `receive`.
    """
    import pyarrow

    if format == "pandas":
        arrow_to_pandas.register_extension_types()
    try:
        arrow_limits.check_stream(buffer, max_bytes)
        with pyarrow.ipc.open_stream(buffer) as reader:
            table = reader.read_all()
        table.validate(full=True)
        changes = arrow_to_pandas.changes_of(table.schema)
        made = _in_format(table, buffer, format, max_bytes)
    except (pyarrow.ArrowException, *_UNREADABLE) as exc:
        raise ProtocolError(f"the kernel sent what is no table: {exc}") from exc
    if changes:
        _warn(changes)
    return made


def _in_format(table: Any, buffer: Any, format: str, max_bytes: int) -> Any:
    if format == "arrow":
        return table
    if format == "polars":
        import polars

        return polars.from_arrow(table)
    return arrow_to_pandas.to_frame(table, buffer, max_bytes)


def _warn(changes: list[dict[str, str | None]]) -> None:
    parts = [
        f"{'column ' + str(each['column']) if each['part'] == 'column' else each['part']}: {each['change']}"
        for each in changes[:_WARNED_CHANGES]
    ]
    more = len(changes) - len(parts)
    text = "; ".join(parts) + (f"; and {more} more" if more else "")
    warnings.warn(
        LossyTableWarning(f"the table differs from the original: {text}", changes), stacklevel=2
    )
