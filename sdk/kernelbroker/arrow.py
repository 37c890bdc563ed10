"""A table as it comes from the broker, an Arrow stream, into pandas, pyarrow or polars.

The data lands in one buffer, and is made into a table from there. It comes out of a sandbox: it is
checked before anything follows its offsets. What pyarrow's own metadata does not carry of a DataFrame
(odd labels, Python objects) stands beside it; the kernel's `dataframes.py` writes that down.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .protocol.errors import ConnectionLost, ProtocolError
from .transfer import Transfer

if TYPE_CHECKING:
    import pandas

_KEY = b"kernelbroker"
_MOST_IN_PLACE = 50
"""Columns that may each have memory of their own; pandas warns of more than a hundred."""
_UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError),
    RecursionError,  # of JSON
)
"""What pyarrow and pandas raise for data that is none, besides pyarrow's own errors."""
_NEEDED = {"pandas": ("pyarrow", "pandas"), "arrow": ("pyarrow",), "polars": ("pyarrow", "polars")}


def expect(as_: str) -> None:
    """Raises ImportError where what it takes is not installed, ValueError for no such form."""
    if as_ not in _NEEDED:
        raise ValueError(f"as_ is one of {', '.join(_NEEDED)}, not {as_!r}")
    for module in _NEEDED[as_]:
        try:
            importlib.import_module(module)
        except ImportError as exc:
            install = module if module == "polars" else "'kernelbroker[pandas]'"
            raise ImportError(f"tables need {module}: pip install {install}") from exc


async def receive(transfer: Transfer, as_: str) -> Any:
    """Ask, and make a table of what comes. Raises as `Session.table`, and ProtocolError."""
    import pyarrow

    await transfer.begin()
    await transfer.answer()
    length = transfer.headers.get("Content-Length")
    buffer: Any
    if length is not None:
        try:
            buffer = pyarrow.allocate_buffer(int(length))
        except (MemoryError, OverflowError) as exc:
            raise ProtocolError(f"the kernel announced a table of {length} bytes: {exc}") from exc
        done = await transfer.read_into(memoryview(buffer).cast("B"))
        if done < int(length):
            raise ConnectionLost(f"the table broke off after {done:,} of {int(length):,} bytes")
    else:
        sink = pyarrow.BufferOutputStream()
        while piece := await transfer.read():
            sink.write(piece)
        buffer = sink.getvalue()
    return await asyncio.to_thread(_made, buffer, as_)


def _made(buffer: Any, as_: str) -> Any:
    import pyarrow

    try:
        with pyarrow.ipc.open_stream(buffer) as reader:
            table = reader.read_all()
        table.validate(full=True)
        if as_ == "arrow":
            return table
        if as_ == "polars":
            import polars

            return polars.from_arrow(table)
        return frame(table, buffer)
    except (pyarrow.ArrowException, *_UNREADABLE) as exc:
        raise ProtocolError(f"the kernel sent what is no table: {exc}") from exc


def frame(table: Any, buffer: Any) -> pandas.DataFrame:
    """The DataFrame that was made into this pyarrow Table, whose data is in this buffer.

    It can be written to. Columns of numbers and moments stay where they are, if the buffer is ours alone
    and no two columns lie in the same place: writing to one could break what was checked of another.
    """
    import pandas

    metadata = table.schema.metadata or {}
    beside = json.loads(metadata.get(_KEY, b"{}"))
    in_place = buffer.is_mutable and table.num_columns <= _MOST_IN_PLACE and _is_disjoint(table)
    made: pandas.DataFrame = table.to_pandas(integer_object_nulls=True, split_blocks=in_place)
    for place, missing in beside.get("objects", {}).items():
        _restore_objects(made, int(place), table.column(int(place)), missing)
    for place, found in beside.get("categories", {}).items():
        column = made.iloc[:, int(place)].cat
        true = pandas.Categorical.from_codes(column.codes, _labels(found), column.ordered)
        made.isetitem(int(place), pandas.Series(true, made.index))
    for place in range(made.shape[1]):
        _make_writable(made, place, buffer, in_place=in_place)
    for place in beside.get("arrow", []):
        column = pandas.arrays.ArrowExtensionArray(table.column(place))
        made.isetitem(place, pandas.Series(column, made.index))
    if "rows" in beside:
        attrs = made.attrs
        made = pandas.DataFrame(index=_labels(beside["rows"]))
        made.attrs = attrs
    if "levels" in beside:
        count = len(beside["levels"]["names"])
        index = _joined(made.iloc[:, made.shape[1] - count :], beside["levels"])
        made = made.iloc[:, : made.shape[1] - count]
        made.index = index
    if "columns" in beside:
        made.columns = _labels(beside["columns"])
    _set_freq(made.index, beside)
    return made


def _labels(found: dict[str, Any]) -> pandas.Index[Any]:
    """Labels that stand beside a table; the kernel's `dataframes.py` has their forms."""
    import pandas
    import pyarrow

    if "table" in found:
        data = pyarrow.py_buffer(base64.b64decode(found["table"]))
        with pyarrow.ipc.open_stream(data) as reader:
            table = reader.read_all()
        table.validate(full=True)
        return _joined(frame(table, data), found)
    index: pandas.Index[Any] = (
        pandas.RangeIndex(*found["range"])
        if "range" in found
        else pandas.Index(found["values"], dtype=object)
    )
    index.names = [_name(name) for name in found["names"]]
    return index


def _joined(levels: pandas.DataFrame, found: dict[str, Any]) -> pandas.Index[Any]:
    """Labels out of a column for each of their levels."""
    import pandas

    columns = [levels.iloc[:, place] for place in range(levels.shape[1])]
    parts = [pandas.Index(column, dtype=column.dtype) for column in columns]
    names = [_name(name) for name in found["names"]]
    index: pandas.Index[Any] = pandas.MultiIndex.from_arrays(parts) if found["multi"] else parts[0]
    index.names = names
    _set_freq(index, found)
    return index


def _name(name: Any) -> Any:
    return tuple(map(_name, name)) if isinstance(name, list) else name


def _set_freq(index: Any, found: dict[str, Any]) -> None:
    import pandas

    if "freq" in found and isinstance(index, pandas.DatetimeIndex | pandas.TimedeltaIndex):
        index.freq = found["freq"]


def _is_disjoint(table: Any) -> bool:
    """Whether each of the table's buffers has its memory for itself, as far as that is easily seen."""
    held: list[tuple[int, int]] = []
    for column in table.columns:
        for chunk in column.chunks:
            parts = [chunk.indices, chunk.dictionary] if hasattr(chunk, "dictionary") else [chunk]
            if not all(_is_plain(part.type) for part in parts):
                return False
            buffers = [each for part in parts for each in part.buffers() if each and each.size]
            held += [(each.address, each.address + each.size) for each in buffers]
    held.sort()
    return all(end <= start for (_, end), (start, _) in pairwise(held))


def _is_plain(type_: Any) -> bool:
    """Whether `buffers` of such an array tells all: of what is nested, dictionaries would lack."""
    from pyarrow import types

    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    plain = (types.is_primitive, types.is_decimal, types.is_null, *texts)
    return any(is_one(type_) for is_one in plain)


def _make_writable(made: pandas.DataFrame, place: int, buffer: Any, *, in_place: bool) -> None:
    """pyarrow takes all memory that it has not made for somebody else's, and locks it."""
    import numpy
    import pandas

    column = made.iloc[:, place]
    if isinstance(column.dtype, pandas.CategoricalDtype | pandas.DatetimeTZDtype):
        made.isetitem(place, column.copy(deep=True))
    elif isinstance(column.dtype, numpy.dtype) and column.dtype != object:
        data = column.to_numpy()
        start = data.__array_interface__["data"][0] - buffer.address
        if start >= 0 and start + data.nbytes <= buffer.size:
            data = numpy.frombuffer(buffer, data.dtype, data.size, start)
            made.isetitem(place, pandas.Series(data, made.index, copy=not in_place))


def _restore_objects(made: pandas.DataFrame, place: int, data: Any, missing: str) -> None:
    """Make a column hold Python objects again."""
    import pandas
    import pyarrow

    column = made.iloc[:, place]
    if column.dtype == object and missing == "None" and not pyarrow.types.is_nested(data.type):
        return
    items = data.to_pylist()
    if missing == "nan":
        items = [float("nan") if item is None else item for item in items]
    objects = pandas.Series(items, index=made.index, dtype=object)
    made.isetitem(place, objects)
