"""A pandas DataFrame as an Arrow table, from which the SDK makes the same DataFrame again.

pyarrow's own metadata carries most of a DataFrame. The rest is in the schema's metadata, as JSON under
`KEY`, for the SDK's `from_arrow.py` and other readers::

    {"columns": the column labels,
     "categories": {position: labels}: the real categories of a column that has texts in their place,
     "objects": {position: "None" | "nan" | "json"}: columns of Python objects, and what stands for
         missing; "json": the column is text, and each value is the JSON of one object (see below),
     "sparse": {position: fill value as JSON of one object}: the column is dense here, and of the subtype,
     "nan": [position]: columns of nullable floats with NaN beside missing values,
     "complex": [position]: the column is a struct of floats, `real` and `imag`,
     "arrow": [position]: columns of Arrow's own types, as pandas.ArrowDtype,
     "levels": {"names": [...], "multi": bool}: the last columns are the row labels,
     "rows": the row labels, if they are a range of numbers and pyarrow does not keep them,
     "attrs": a dict as JSON of one object, if pyarrow does not keep it,
     "freq": of row labels that are timestamps or durations,
     "unique": true: the flag `allows_duplicate_labels` is False,
     "changes": [{"part": "column" | "row labels" | "column labels" | "attrs", "column": its name as text
         or null, "change": what was changed, in words}]: with `lossy`, all that differs from the original}

Labels are `names`, `multi`, an optional `freq`, and one of `range` (start, stop, step), `values` (JSON's
own types), or `table` (base64 of such a table as an Arrow stream, with a column for each level).

The JSON of one object is null, a bool, an int, a finite float, a text or a list for None and these types
themselves (exactly, no subclass); any other object is an object with one key, its type::

    {"int": hexadecimal text, of an int that has more than 4,300 digits}
    {"float": "nan" | "inf" | "-inf"}   {"NA": null}   {"NaT": null}   {"complex": [real, imag]}
    {"tuple" | "set" | "frozenset": [value, ...]}   {"dict": [[key, value], ...]}
    {"decimal" | "fraction" | "uuid": text}   {"bytes" | "bytearray": base64}
    {"range": [start, stop, step]}
    {"date" | "time": ISO 8601}   {"datetime": ISO 8601}
    {"datetime": [ISO 8601 without zone, name of the zone, fold]}
    {"timedelta": [days, seconds, microseconds]}   {"Timedelta": [count, unit]}
    {"Timestamp": [count, unit, zone or null]}: count is that of UTC   {"Period": [ordinal, freq]}
    {"Interval": [left, right, closed]}: left and right are values
    {"numpy": [dtype, value]}: a scalar of bool, int, float, complex, or as count datetime64 or timedelta64
    {"array": [dtype, shape, [value, ...]]}: of such values, or of objects

With `Changes` that are not allowed, a DataFrame that would come back different is refused, with two
exceptions: a `freq` that has no text form is dropped, and pandas' storage of texts is not kept.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from .arrow_columns import Columns, are_same, arrow_errors, plain_text
from .changes import NAME_CHARS, Changes, Part
from .introspection import is_a, labels_of, levels_of
from .object_json import Encoder
from .values import unique

KEY = b"kernelbroker"
_JSON_TYPES = (str, int, float, bool, type(None))


def table_of(frame: Any, changes: Changes) -> Any:
    """A pyarrow Table. Raises Refused."""
    table, metadata = _converted(frame, changes)
    return with_metadata(table, metadata | ({"changes": changes.made} if changes.made else {}))


def with_metadata(table: Any, metadata: dict[str, Any]) -> Any:
    if not metadata:
        return table
    known = table.schema.metadata or {}
    return table.replace_schema_metadata({**known, KEY: json.dumps(metadata).encode()})


def _converted(
    frame: Any, changes: Changes, whole: Part | None = None
) -> tuple[Any, dict[str, Any]]:
    """The table and its metadata. Its parts are named in messages, or are all of one part."""
    import pandas

    metadata: dict[str, Any] = {}
    labels, index = frame.columns, frame.index
    names = labels_of(labels)
    attrs = _add_attrs(metadata, frame.attrs, changes)
    if not frame.flags.allows_duplicate_labels:
        metadata["unique"] = True
    frame = pandas.DataFrame(frame).copy(deep=False)  # a derived class may override anything
    frame.flags.allows_duplicate_labels = True
    if not _are_plain(labels):
        metadata["columns"] = _labels(labels, whole or Part("column labels"), changes)
        frame.columns = unique(plain_text(label, NAME_CHARS) for label in names)
    rows = whole or Part("row labels")
    _add_freq(metadata, index, rows, changes)
    has_plain_name = index.name is None or type(index.name) is str
    if is_a(index, "pandas", "RangeIndex") and not (len(labels) and has_plain_name):
        metadata["rows"] = _labels(index, rows, changes)
        frame.index = pandas.RangeIndex(len(frame))
    elif not len(labels) or not _is_kept(index) or _share_names(frame.columns, index):
        metadata["levels"] = _names(index, rows, changes)
        frame.index = pandas.RangeIndex(len(frame))
        frame = pandas.concat([frame, _levels(index)], axis=1)
        texts = unique(plain_text(label, NAME_CHARS) for label in frame.columns)
        frame.columns = pandas.Index(texts, name=labels.name if _are_plain(labels) else None)
    frame.attrs = attrs

    def part(place: int) -> Part:
        if place < len(labels):
            return whole or Part("column", names[place])
        return whole or Part("row labels", index.names[place - len(labels)])

    columns = Columns(part, changes, lambda index, part: _labels(index, part, changes))
    return columns.table(frame), metadata | columns.metadata


def _labels(index: Any, part: Part, changes: Changes) -> dict[str, Any]:
    import pyarrow

    found = _names(index, part, changes)
    _add_freq(found, index, part, changes)
    if is_a(index, "pandas", "RangeIndex"):
        return {**found, "range": [index.start, index.stop, index.step]}
    if index.dtype == object and not found["multi"]:
        values = list(index)
        if all(type(value) in _JSON_TYPES for value in values):
            return {**found, "values": values}
    table = with_metadata(*_converted(_levels(index), changes, part))
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {**found, "table": base64.b64encode(sink.getvalue()).decode()}


def _levels(index: Any) -> Any:
    """The labels as a DataFrame, with a column for each level."""
    import pandas

    rows = pandas.RangeIndex(len(index))
    levels = [pandas.Series(level, rows, dtype=level.dtype) for level in levels_of(index)]
    names = [f"level_{place}" if name is None else name for place, name in enumerate(index.names)]
    frame = pandas.concat(levels, axis=1)
    frame.columns = unique(plain_text(name, NAME_CHARS) for name in names)
    return frame


def _names(index: Any, part: Part, changes: Changes) -> dict[str, Any]:
    import numpy

    def as_json(name: Any) -> Any:
        if isinstance(name, numpy.generic):
            name = name.item()
        if type(name) is tuple:
            return [as_json(part) for part in name]
        if type(name) not in _JSON_TYPES:
            changes.add(part, "has a name that cannot be carried", "text (or see .rename_axis)")
            return plain_text(name, NAME_CHARS)
        return name

    names = [as_json(name) for name in index.names]
    return {"names": names, "multi": is_a(index, "pandas", "MultiIndex")}


def _add_freq(metadata: dict[str, Any], index: Any, part: Part, changes: Changes) -> None:
    """Add the `freq` of an index of timestamps or durations, which pyarrow loses."""
    if not (is_a(index, "pandas", "DatetimeIndex") or is_a(index, "pandas", "TimedeltaIndex")):
        return
    if index.freq is None:
        return
    text = str(index.freqstr)
    again = index.copy()
    try:
        again.freq = None
        again.freq = text
    except ValueError:
        again.freq = None
    if again.freq == index.freq:
        metadata["freq"] = text
    else:
        changes.note(part, f"has no freq; it was {text}")


def _are_plain(columns: Any) -> bool:
    """Whether pyarrow keeps the labels unchanged: unique texts."""
    import pandas

    text = pandas.Index([], dtype="str").dtype
    # The dtype first: objects may be unhashable, and so neither unique nor repeated.
    if columns.nlevels > 1 or not are_same(columns.dtype, text):
        return False
    if not columns.is_unique or columns.hasnans:
        return False
    return columns.name is None or type(columns.name) is str


def _is_kept(index: Any) -> bool:
    """Whether pyarrow keeps the row labels unchanged, except for a `freq`."""
    import pandas
    import pyarrow

    empty = index[:0]
    names = [name for name in index.names if name is not None]
    if not all(type(name) is str for name in names) or len(set(names)) < len(names):
        return False
    if is_a(index, "pandas", "RangeIndex"):
        return True
    dtypes = [level.dtype for level in levels_of(empty)]
    if not len(index) and any(is_a(dtype, "pandas", "CategoricalDtype") for dtype in dtypes):
        return False  # the stream of an empty table has no categories
    if object in dtypes:
        return False  # they may come back as another type
    try:
        back = pyarrow.Table.from_pandas(pandas.DataFrame(index=empty)).to_pandas().index
    except arrow_errors():
        return False
    return (
        type(back) is type(empty)
        and list(back.names) == list(empty.names)
        and all(map(are_same, dtypes, (level.dtype for level in levels_of(back))))
    )


def _share_names(columns: Any, index: Any) -> bool:
    """Whether a column has the name that pyarrow gives the row labels."""
    if is_a(index, "pandas", "RangeIndex"):
        return False  # not a column
    names = [
        f"__index_level_{place}__" if name is None else name
        for place, name in enumerate(index.names)
    ]
    return not set(columns).isdisjoint(names)


def _add_attrs(metadata: dict[str, Any], attrs: Any, changes: Changes) -> Any:
    """Add what pyarrow, which keeps `attrs` as JSON, would lose. Returns what it keeps."""
    try:
        kept = repr(json.loads(json.dumps(attrs))) == repr(attrs)
    except (TypeError, ValueError, RecursionError):
        kept = False
    if kept:
        return attrs
    encoder = Encoder()
    metadata["attrs"] = encoder.encode(attrs)
    if encoder.replaced:
        problem, remedy = encoder.described()
        changes.add(Part("attrs"), problem, remedy)
    return {}
