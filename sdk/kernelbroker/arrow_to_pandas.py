"""Makes the DataFrame again that the kernel made into an Arrow table.

What pyarrow's own metadata cannot express of a DataFrame (unusual labels, Python objects) is in metadata of
its own, which the kernel's `dataframes.py` writes and describes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from . import arrow_limits, object_json

if TYPE_CHECKING:
    import pandas

KEY = b"kernelbroker"
CHANGES = "kernelbroker_changes"
"""The key in `attrs` of what the kernel changed, see `changes_of`."""
_MOST_IN_PLACE = 50
"""Columns that may each have memory of their own; pandas warns of more than a hundred."""
_NULLABLE = {
    "bool": "boolean",
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
}
"""The dtypes for columns of other libraries that have missing values, by Arrow's type."""


def register_extension_types() -> None:
    """Register pandas' Arrow types of periods and intervals. Call it before a stream is opened.

    pandas does so only when it first makes such Arrow data itself. Without them, pyarrow reads the values
    that they are stored as.
    """
    from pandas.core.arrays.arrow import extension_types  # noqa: F401


def changes_of(schema: Any) -> list[dict[str, str | None]]:
    """What the kernel changed in the table: see `LossyTableWarning.changes`.

    Raises:
        ValueError, TypeError, LookupError: the metadata is invalid.
    """
    return [
        {
            "part": str(each["part"]),
            "column": None if each["column"] is None else str(each["column"]),
            "change": str(each["change"]),
        }
        for each in _metadata(schema).get("changes", [])
    ]


def _metadata(schema: Any) -> dict[str, Any]:
    """The metadata that the kernel wrote; empty if there is none."""
    found = json.loads((schema.metadata or {}).get(KEY, b"{}"))
    if not isinstance(found, dict):
        raise ValueError("the metadata is no JSON object")
    return found


def to_frame(table: Any, buffer: Any, max_bytes: int) -> pandas.DataFrame:
    """The DataFrame that was made into this pyarrow Table, whose data is in this buffer.

    It can be written to. Columns of numbers and times are not copied, if nothing else uses the buffer
    and no two columns overlap: writing to one could break what was validated of another.

    Raises:
        TooLarge: it takes more than `max_bytes`.
    """
    import pandas

    arrow_limits.check_frame(table, max_bytes)
    metadata = _metadata(table.schema)
    in_place = buffer.is_mutable and table.num_columns <= _MOST_IN_PLACE and _is_disjoint(table)
    apart = _converted_apart(table, metadata)
    frame: pandas.DataFrame = _without(table, apart).to_pandas(
        integer_object_nulls=True, split_blocks=in_place
    )
    for place, missing in metadata.get("objects", {}).items():
        if int(place) not in apart:
            _restore_objects(frame, int(place), table.column(int(place)), missing)
    for place, found in metadata.get("categories", {}).items():
        column = frame.iloc[:, int(place)].cat
        true = pandas.Categorical.from_codes(
            column.codes, _labels(found, max_bytes), column.ordered
        )
        frame.isetitem(int(place), pandas.Series(true, frame.index))
    for place, fill in metadata.get("sparse", {}).items():
        dense = frame.iloc[:, int(place)].to_numpy()
        dtype = pandas.SparseDtype(dense.dtype, object_json.value(fill))
        sparse = pandas.arrays.SparseArray(dense, dtype=dtype)
        frame.isetitem(int(place), pandas.Series(sparse, frame.index))
    for place in range(frame.shape[1]):
        _make_writable(frame, place, buffer, in_place=in_place)
    for place, values in apart.items():
        frame.isetitem(place, pandas.Series(values, frame.index, values.dtype))
    frame = _with_labels(frame, metadata, max_bytes)
    if "attrs" in metadata:
        frame.attrs = object_json.value(metadata["attrs"])
    if changes := changes_of(table.schema):
        frame.attrs[CHANGES] = changes
    return frame


def _with_labels(
    frame: pandas.DataFrame, metadata: dict[str, Any], max_bytes: int
) -> pandas.DataFrame:
    """The frame with its own row and column labels, in place of those that Arrow has names for."""
    import pandas

    if "rows" in metadata:
        rows = _labels(metadata["rows"], max_bytes)
        if frame.shape[1]:
            frame.index = rows
        else:
            attrs = frame.attrs
            frame = pandas.DataFrame(index=rows)
            frame.attrs = attrs
    if "levels" in metadata:
        count = len(metadata["levels"]["names"])
        index = _joined(frame.iloc[:, frame.shape[1] - count :], metadata["levels"])
        frame = frame.iloc[:, : frame.shape[1] - count]
        frame.index = index
    if "columns" in metadata:
        frame.columns = _labels(metadata["columns"], max_bytes)
    _set_freq(frame.index, metadata)
    if metadata.get("unique"):
        frame.flags.allows_duplicate_labels = False
    return frame


def _converted_apart(table: Any, metadata: dict[str, Any]) -> dict[int, Any]:
    """The columns, by position, that pyarrow's `to_pandas` has no exact form for."""
    import numpy
    import pandas

    found: dict[int, Any] = {}
    for place in metadata.get("arrow", []):
        found[place] = pandas.arrays.ArrowExtensionArray(table.column(place))
    for place in metadata.get("nan", []):
        found[place] = _nullable_floats(table.column(place))
    for place in metadata.get("complex", []):
        found[place] = _complex(table.column(place))
    if b"pandas" not in (table.schema.metadata or {}):  # made by another library
        for place, column in enumerate(table.columns):
            if column.null_count and (name := _NULLABLE.get(str(column.type))):
                found[place] = pandas.api.types.pandas_dtype(name).__from_arrow__(column)
            elif _is_beyond_python(column):
                found[place] = pandas.arrays.ArrowExtensionArray(column)
    for place, missing in metadata.get("objects", {}).items():
        if missing == "json":
            texts = table.column(int(place)).to_pylist()
            values = numpy.empty(len(texts), object)
            for row, text in enumerate(texts):
                values[row] = None if text is None else object_json.loads(text)
            found[int(place)] = values
    return found


def _is_beyond_python(column: Any) -> bool:
    """Whether the column holds times with nanoseconds, or dates beyond Python's calendar."""
    import pyarrow

    if not _has_times(column.type):
        return False
    try:
        column.to_pandas()
    except (pyarrow.ArrowException, ValueError, OverflowError):
        return True
    return False


def _has_times(type_: Any) -> bool:
    """Whether pyarrow makes Python's dates or times of the values, or of values in them."""
    from pyarrow import types

    if types.is_date(type_) or types.is_time64(type_):
        return True
    fields = [type_.field(place).type for place in range(type_.num_fields)]
    return any(types.is_timestamp(each) or _has_times(each) for each in fields)


def _without(table: Any, places: Collection[int]) -> Any:
    """The table with nulls in place of these columns."""
    import pyarrow

    if not places:
        return table
    nulls = pyarrow.nulls(table.num_rows)
    columns = [nulls if place in places else each for place, each in enumerate(table.columns)]
    fields = [
        each.with_type(pyarrow.null()) if place in places else each
        for place, each in enumerate(table.schema)
    ]
    schema = pyarrow.schema(fields, table.schema.metadata)
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _nullable_floats(column: Any) -> Any:
    """pandas would take NaN for missing."""
    import pandas

    mask = column.is_null().to_numpy()
    return pandas.arrays.FloatingArray(column.fill_null(1.0).to_numpy().copy(), mask.copy())


def _complex(column: Any) -> Any:
    import numpy
    import pyarrow.compute

    parts = [pyarrow.compute.struct_field(column, name).to_numpy() for name in ("real", "imag")]
    numbers = numpy.empty(len(column), numpy.result_type(parts[0].dtype, numpy.complex64))
    numbers.real, numbers.imag = parts
    return numbers


def _labels(found: dict[str, Any], max_bytes: int) -> pandas.Index[Any]:
    """Labels from the metadata; the kernel's `dataframes.py` describes their forms."""
    import pandas
    import pyarrow

    if "table" in found:
        data = pyarrow.py_buffer(base64.b64decode(found["table"]))
        arrow_limits.check_stream(data, max_bytes)
        with pyarrow.ipc.open_stream(data) as reader:
            table = reader.read_all()
        table.validate(full=True)
        return _joined(to_frame(table, data, max_bytes), found)
    if "range" in found:
        arrow_limits.check_size(8 * len(range(*found["range"])), max_bytes)
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
    """Whether `buffers` of such an array is complete: for nested types, dictionaries would be missing."""
    from pyarrow import types

    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    plain = (types.is_primitive, types.is_decimal, types.is_null, *texts)
    return any(is_one(type_) for is_one in plain)


def _make_writable(frame: pandas.DataFrame, place: int, buffer: Any, *, in_place: bool) -> None:
    """Make the blocks writable. pyarrow marks memory that it has not allocated as read-only."""
    import numpy
    import pandas

    column = frame.iloc[:, place]
    if isinstance(column.dtype, pandas.CategoricalDtype | pandas.DatetimeTZDtype):
        frame.isetitem(place, column.copy(deep=True))
    elif isinstance(column.dtype, numpy.dtype) and column.dtype != object:
        data = column.to_numpy()
        start = data.__array_interface__["data"][0] - buffer.address
        if start >= 0 and start + data.nbytes <= buffer.size:
            data = numpy.frombuffer(buffer, data.dtype, data.size, start)
            frame.isetitem(place, pandas.Series(data, frame.index, copy=not in_place))


def _restore_objects(frame: pandas.DataFrame, place: int, data: Any, missing: str) -> None:
    """Make a column hold Python objects again."""
    import pandas
    import pyarrow

    column = frame.iloc[:, place]
    if pyarrow.types.is_dictionary(data.type) or pyarrow.types.is_run_end_encoded(data.type):
        raise ValueError(f"Python objects do not come as {data.type}")
    if column.dtype == object and missing == "None" and not pyarrow.types.is_nested(data.type):
        return
    items = data.to_pylist()
    if missing == "nan":
        items = [float("nan") if item is None else item for item in items]
    objects = pandas.Series(items, index=frame.index, dtype=object)
    frame.isetitem(place, objects)
