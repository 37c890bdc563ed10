"""A pandas DataFrame as an Arrow table, of which the SDK makes the same DataFrame again.

pyarrow's own metadata carries most of a DataFrame. What it loses stands beside it in the schema's
metadata, as JSON under `KEY`, for the SDK's `arrow.py` (and whoever else cares)::

    {"columns": the column labels,
     "categories": {position: labels}: the true categories of a column, which has texts in their place,
     "objects": {position: "None" | "nan"}: columns of Python objects, and what stands for missing,
     "arrow": [position]: columns of Arrow's own types, as pandas.ArrowDtype,
     "levels": {"names": [...], "multi": bool}: the last columns are the row labels,
     "rows": the row labels of a table without columns,
     "freq": of row labels that are moments or durations}

Labels are `names`, `multi`, `freq` where there is one, and one of `range` (start, stop, step), `values`
(JSON's own types), or `table` (base64 of such a table as an Arrow stream, a column for each level).

What would come back as something else is refused. Two things are let go: a `freq` that cannot be
spelled as text, and how pandas stores texts.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

from .conversion import converted
from .objects import is_a, type_name
from .refusals import Refused
from .texts import safe_text
from .values import unique

KEY = b"kernelbroker"
LABEL_CHARS = 200
_CATEGORY_CHARS = 100_000
_JSON_TYPES = (str, int, float, bool, type(None))
_KEPT_TYPES = (str, int, float, bool, bytes, Decimal)
"""Of which Arrow keeps a column of Python objects, if they are all of one; decimals get as many places."""


def table_of(frame: Any) -> Any:
    """A pyarrow Table. Raises Refused."""
    import pandas
    import pyarrow

    beside: dict[str, Any] = {}
    labels, index, attrs = frame.columns, frame.index, frame.attrs
    _expect_json(attrs)
    frame = pandas.DataFrame(frame).copy(deep=False)  # a derived class may have its own ways
    if not _are_plain(labels):
        beside["columns"] = _labels(labels, "the column labels")
        frame.columns = unique(_text(label, LABEL_CHARS) for label in labels)
    if (freq := _freq(index)) is not None:
        beside["freq"] = freq
    if not len(labels) and is_a(index, "pandas", "RangeIndex"):
        beside["rows"] = _labels(index, "the row labels")
    elif not len(labels) or not _is_kept(index):
        beside["levels"] = _names(index, "the row labels")
        frame.index = pandas.RangeIndex(len(frame))
        frame = pandas.concat([frame, _levels(index)], axis=1)
        frame.columns = unique(_text(label, LABEL_CHARS) for label in frame.columns)
    frame.attrs = attrs
    names = [*labels, *index.names]
    beside |= _columns(frame, names)
    try:
        table = converted(frame, untyped=beside.get("arrow", []))
        # What has no rows comes back in no time, and tells nearly all.
        back = table.slice(0, 0).to_pandas(integer_object_nulls=True, use_threads=False)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError, KeyError) as error:
        raise Refused("conflict", f"Arrow has no type for it: {safe_text(error, 300)}") from None
    for place, dtype in enumerate(frame.dtypes):
        if place in beside.get("objects", {}):
            _expect_kept(names[place], frame.iloc[:, place], table.column(place))
        elif place not in beside.get("arrow", []) and not _are_same(dtype, back.dtypes.iloc[place]):
            raise _refusal(names[place], f"is {dtype}, of which Arrow makes another type")
    if beside:
        table = table.replace_schema_metadata(
            {**(table.schema.metadata or {}), KEY: json.dumps(beside).encode()}
        )
    return table


def _refusal(label: object, why: str) -> Refused:
    label = safe_text(label, LABEL_CHARS)
    return Refused("conflict", f"column {label} {why}; convert it first, with .astype(str) for one")


def _columns(frame: Any, names: list[Any]) -> dict[str, Any]:
    """What stands beside the columns; those whose categories Arrow does not keep get others."""
    import numpy
    import pandas

    objects: dict[int, str] = {}
    categories: dict[int, Any] = {}
    arrow: list[int] = []
    for place, dtype in enumerate(frame.dtypes):
        column = frame.iloc[:, place]
        if dtype.kind == "O" and is_a(dtype, "numpy", "dtype"):
            objects[place] = _missing(names[place], column)
        elif isinstance(dtype, pandas.CategoricalDtype):
            true = dtype.categories
            is_kept = _is_text(true) or (
                is_a(true.dtype, "numpy", "dtype") and true.dtype.kind in "iufbM"
            )
            if not is_kept or not len(frame):  # the stream of an empty table has no categories
                what = f"the categories of column {safe_text(names[place], LABEL_CHARS)}"
                categories[place] = _labels(true, what)
            if not is_kept:
                texts = unique(_text(category, _CATEGORY_CHARS) for category in true)
                frame.isetitem(place, column.cat.rename_categories(texts))
        elif isinstance(dtype, pandas.ArrowDtype):
            arrow.append(place)
        elif (
            isinstance(dtype, pandas.Float32Dtype | pandas.Float64Dtype)
            and numpy.isnan(column.to_numpy(dtype="float64", na_value=0.0)).any()
        ):
            raise _refusal(names[place], "has NaN beside NA, which Arrow does not tell apart")
    found = {"objects": objects, "categories": categories, "arrow": arrow}
    return {key: value for key, value in found.items() if value}


def _labels(index: Any, what: str) -> dict[str, Any]:
    import pyarrow

    found = _names(index, what)
    if (freq := _freq(index)) is not None:
        found["freq"] = freq
    values = list(index)
    if is_a(index, "pandas", "RangeIndex"):
        return {**found, "range": [index.start, index.stop, index.step]}
    if index.dtype == object and all(type(value) in _JSON_TYPES for value in values):
        return {**found, "values": values}
    try:
        table = table_of(_levels(index))
    except Refused as refused:
        raise Refused("conflict", f"{what} cannot be carried: {refused.message}") from None
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {**found, "table": base64.b64encode(sink.getvalue()).decode()}


def _levels(index: Any) -> Any:
    """The labels as a DataFrame, a column for each level."""
    import pandas

    rows = pandas.RangeIndex(len(index))
    values = [index.get_level_values(level) for level in range(index.nlevels)]
    levels = [pandas.Series(level, rows, dtype=level.dtype) for level in values]
    names = [f"level_{place}" if name is None else name for place, name in enumerate(index.names)]
    frame = pandas.concat(levels, axis=1)
    frame.columns = unique(_text(name, LABEL_CHARS) for name in names)
    return frame


def _names(index: Any, what: str) -> dict[str, Any]:
    import numpy

    def spelled(name: Any) -> Any:
        if isinstance(name, numpy.generic):
            name = name.item()
        if type(name) is tuple:
            return [spelled(part) for part in name]
        if type(name) not in _JSON_TYPES:
            raise Refused(
                "conflict", f"{what} have a name that cannot be carried; see .rename_axis"
            )
        return name

    names = [spelled(name) for name in index.names]
    return {"names": names, "multi": is_a(index, "pandas", "MultiIndex")}


def _freq(index: Any) -> str | None:
    """What pyarrow loses of an index of moments or durations, if pandas can read it."""
    if not (is_a(index, "pandas", "DatetimeIndex") or is_a(index, "pandas", "TimedeltaIndex")):
        return None
    if index.freq is None:
        return None
    text = str(index.freqstr)
    again = index.copy()
    try:
        again.freq = None
        again.freq = text
    except ValueError:
        return None
    return text if again.freq == index.freq else None


def _is_text(index: Any) -> bool:
    """Whether these are texts in pandas' own type."""
    import pandas

    text = pandas.Index([], dtype="str").dtype
    return isinstance(text, pandas.StringDtype) and _are_same(index.dtype, text)


def _are_plain(columns: Any) -> bool:
    """Whether pyarrow keeps the labels as they are: unique texts."""
    if columns.nlevels > 1 or not columns.is_unique or not _is_text(columns):
        return False
    return columns.name is None or type(columns.name) is str


def _is_kept(index: Any) -> bool:
    """Whether pyarrow keeps the row labels as they are, but for a `freq`."""
    import pandas
    import pyarrow

    empty = index[:0]
    levels = range(index.nlevels)
    if not all(name is None or type(name) is str for name in index.names):
        return False
    if is_a(index, "pandas", "RangeIndex"):
        return True
    if any(index.get_level_values(level).dtype == object for level in levels):
        return False  # they may come back as some other type
    try:
        back = pyarrow.Table.from_pandas(pandas.DataFrame(index=empty)).to_pandas().index
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError, KeyError):
        return False
    return (
        type(back) is type(empty)
        and list(back.names) == list(empty.names)
        and all(
            _are_same(empty.get_level_values(level).dtype, back.get_level_values(level).dtype)
            for level in levels
        )
    )


def _are_same(dtype: Any, other: Any) -> bool:
    import pandas

    if isinstance(dtype, pandas.StringDtype) and isinstance(other, pandas.StringDtype):
        return dtype.na_value is other.na_value
    return bool(dtype == other)


def _text(label: object, limit: int) -> str:
    return safe_text(label, limit).encode("utf-8", "backslashreplace").decode()


def _expect_json(attrs: Any) -> None:
    """pyarrow keeps them as JSON, and drops those that are none."""
    try:
        kept = repr(json.loads(json.dumps(attrs))) == repr(attrs)
    except (TypeError, ValueError, RecursionError):
        kept = False
    if not kept:
        raise Refused("conflict", "its attrs hold more than JSON has; see .attrs.clear()")


def _missing(label: object, column: Any) -> str:
    """What stands in a column of Python objects for a missing value."""
    missing = column[column.isna()]
    kinds = {"None" if item is None else type_name(item) for item in missing.tolist()}
    if not kinds:
        return "None"
    if kinds <= {"None"} or kinds <= {"float"}:
        return "None" if "None" in kinds else "nan"
    raise Refused(
        "conflict",
        f"column {safe_text(label, LABEL_CHARS)} has several kinds of missing values: see convert_dtypes",
    )


def _expect_kept(label: object, column: Any, made: Any) -> None:
    """Refuse a column of Python objects that Arrow has taken for something else."""
    items = column[column.notna()].tolist()
    kinds = set(map(type, items))
    if not kinds or (len(kinds) == 1 and kinds <= set(_KEPT_TYPES)):
        return
    # By what they show: 1 is equal to 1.0, and an array is neither equal to a list nor different.
    if list(map(repr, made.drop_null().to_pylist())) != list(map(repr, items)):
        shown = ", ".join(sorted({type_name(item) for item in items})[:5])
        raise _refusal(label, f"holds Python objects ({shown}) that Arrow would change")
