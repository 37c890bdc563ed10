"""Tables of any library as Arrow data, such that a pandas DataFrame comes back exactly as it was.

pyarrow's own metadata carries most of a DataFrame. What it loses stands beside it in the schema's
metadata, as JSON under `KEY`, for the SDK (and whoever else cares)::

    {"columns": base64 of an Arrow stream, whose table has the column labels as its index,
     "labels": the same as JSON, where Arrow has no type for them,
     "objects": {position: "None" | "nan"}: columns of Python objects, and what stands for missing,
     "freq", "columns_freq": of labels that are moments or durations}

What would come back as something else is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from .objects import is_a, library_class, type_name
from .refusals import Refused
from .texts import safe_text
from .values import unique

KEY = b"kernelbroker"
LABEL_CHARS = 200
_PLAIN_KINDS = frozenset(
    {"string", "bytes", "integer", "boolean", "decimal", "date", "time", "floating", "empty"}
)
"""Of values in a column of Python objects, by `pandas.api.types.infer_dtype`: Arrow keeps them."""


def arrow(value: object) -> Any:
    """A pyarrow Table, or a RecordBatchReader. Raises Refused for what is no table."""
    if is_a(value, "pandas", "DataFrame"):
        return _of_pandas(value)
    if is_a(value, "polars", "DataFrame"):
        return _of_polars(value)
    import pyarrow

    if is_a(value, "pyarrow", "Table"):
        return value
    if is_a(value, "pyarrow", "RecordBatch"):
        return pyarrow.Table.from_batches([value])
    if hasattr(type(value), "__arrow_c_stream__") and not _is_series(value):
        reader = pyarrow.RecordBatchReader.from_stream(value)
        if is_a(reader, "pyarrow", "RecordBatchReader"):
            return reader
    raise Refused("conflict", f"it is no table, but {type_name(value)}{_hint(value)}")


def is_stream(source: Any) -> bool:
    return is_a(source, "pyarrow", "RecordBatchReader")


def pieces(value: object, rows: int) -> Iterator[Any]:
    """The table as pandas DataFrames of so many rows, at least one, with labels that are unique texts.

    Row labels become columns, unless they are mere numbers of the rows.
    """
    if is_a(value, "pandas", "DataFrame"):
        frame: Any = value
        for start in range(0, max(1, len(frame)), rows):
            yield _flat(frame.iloc[start : start + rows], _has_default_index(frame))
        return
    source = arrow(value)
    import pyarrow

    reader = source if is_stream(source) else source.to_reader(max_chunksize=rows)
    empty = True
    for batch in reader:
        empty = False
        for start in range(0, max(1, batch.num_rows), rows):
            table = pyarrow.Table.from_batches([batch.slice(start, rows)])
            yield _flat(table.to_pandas(integer_object_nulls=True, ignore_metadata=True), True)
    if empty:
        yield _flat(source.schema.empty_table().to_pandas(ignore_metadata=True), True)


def _is_series(value: object) -> bool:
    return is_a(value, "pandas", "Series") or is_a(value, "polars", "Series")


def _hint(value: object) -> str:
    if _is_series(value):
        return "; make one of it with .to_frame()"
    if is_a(value, "polars", "LazyFrame"):
        return "; make one of it with .collect()"
    if is_a(value, "numpy", "ndarray"):
        return "; make one of it with pandas.DataFrame(...)"
    return ""


def _has_default_index(frame: Any) -> bool:
    import pandas

    index = frame.index
    return (
        is_a(index, "pandas", "RangeIndex")
        and index.equals(pandas.RangeIndex(len(index)))
        and (index.name is None)
    )


def _flat(frame: Any, without_index: bool) -> Any:
    if not without_index:
        index = frame.index.to_frame(index=False)
        names = list(frame.index.names)
        index.columns = [
            f"level_{place}" if name is None else name for place, name in enumerate(names)
        ]
        if len(names) == 1 and names[0] is None:
            index.columns = ["index"]
        labels = [*index.columns, *frame.columns]
        index.index = frame.index
        import pandas

        frame = pandas.concat([index, frame], axis=1)
    else:
        labels = list(frame.columns)
        frame = frame.copy(deep=False)
    frame.columns = unique(safe_text(label, LABEL_CHARS) for label in labels)
    return frame


def _of_polars(frame: Any) -> Any:
    import polars
    import pyarrow

    known: Any = library_class("polars", "DataFrame")  # a derived class may have its own ways
    columns = known.get_columns(frame)
    for column in columns:
        if column.dtype == polars.Object:  # Arrow would get their addresses
            raise Refused(
                "conflict",
                f"column {safe_text(column.name, LABEL_CHARS)} holds Python objects, which Arrow cannot "
                "carry; convert or drop it first",
            )
    try:
        return known.to_arrow(frame, compat_level=polars.CompatLevel.oldest())
    except pyarrow.ArrowException as error:
        unfit = next((column for column in columns if not _fits(column)), None)
        if unfit is None:
            raise
        raise Refused(
            "conflict",
            f"Arrow has no type for column {safe_text(unfit.name, LABEL_CHARS)}, "
            f"{safe_text(unfit.dtype, LABEL_CHARS)}; convert it first, with .cast",
        ) from error


def _fits(column: Any) -> bool:
    import pyarrow

    try:
        column.head(0).to_arrow()
    except pyarrow.ArrowException:
        return False
    return True


def _of_pandas(frame: Any) -> Any:
    import pandas
    import pyarrow

    beside: dict[str, Any] = {}
    columns = frame.columns
    attrs = frame.attrs
    frame = pandas.DataFrame(frame).copy(deep=False)  # a derived class may have its own ways
    frame.attrs = attrs
    if not _are_plain(columns):
        beside |= _labels(columns)
        frame.columns = unique(safe_text(label, LABEL_CHARS) for label in columns)
    for key, index in (("freq", frame.index), ("columns_freq", columns)):
        if (freq := _freq(index)) is not None:
            beside[key] = freq
    objects: dict[int, str] = {}
    for place, dtype in enumerate(frame.dtypes):
        if dtype.kind == "O" and is_a(dtype, "numpy", "dtype"):
            objects[place] = _missing(columns[place], frame.iloc[:, place])
    if objects:
        beside["objects"] = objects
    _expect_plain_index(frame.index)
    try:
        table = _converted(frame)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Refused("conflict", f"Arrow has no type for it: {safe_text(error, 300)}") from None
    for place in objects:
        _expect_kept(columns[place], frame.iloc[:, place], table.column(place))
    if beside:
        table = table.replace_schema_metadata(
            {**(table.schema.metadata or {}), KEY: json.dumps(beside).encode()}
        )
    return table


def _converted(frame: Any) -> Any:
    """What `pyarrow.Table.from_pandas` makes.

    It looks at each float by itself for missing values, which takes 30 times as long as numpy does.
    Columns without any pass it as whole numbers, in the same memory.
    """
    import numpy
    import pandas
    import pyarrow

    complete: dict[int, Any] = {}
    for place, dtype in enumerate(frame.dtypes):
        if dtype == numpy.float64 and is_a(dtype, "numpy", "dtype"):
            values = frame.iloc[:, place].to_numpy()
            if not numpy.isnan(values).any():
                complete[place] = values
    if not complete:
        return pyarrow.Table.from_pandas(frame)
    passing = frame.copy(deep=False)
    for place, values in complete.items():
        numbers = pandas.Series(values.view(numpy.int64), frame.index, copy=False)
        passing.isetitem(place, numbers)
    table = pyarrow.Table.from_pandas(passing)
    described = json.loads(table.schema.metadata[b"pandas"])
    for place, values in complete.items():
        field = table.schema.field(place).with_type(pyarrow.float64())
        table = table.set_column(place, field, pyarrow.array(values))
        described["columns"][place] |= {"pandas_type": "float64", "numpy_type": "float64"}
    return table.replace_schema_metadata(
        table.schema.metadata | {b"pandas": json.dumps(described).encode()}
    )


def _freq(index: Any) -> str | None:
    """What pyarrow loses of an index of moments or durations."""
    if is_a(index, "pandas", "DatetimeIndex") or is_a(index, "pandas", "TimedeltaIndex"):
        return None if index.freq is None else str(index.freqstr)
    return None


def _are_plain(columns: Any) -> bool:
    """Whether pyarrow keeps the labels as they are: unique texts in pandas' own text type."""
    import pandas

    if columns.nlevels > 1 or not columns.is_unique:
        return False
    return (
        isinstance(columns.dtype, pandas.StringDtype)
        and columns.equals(pandas.Index(list(columns), dtype="str", name=columns.name))
        and (columns.name is None or type(columns.name) is str)
    )


def _labels(columns: Any) -> dict[str, Any]:
    import pandas
    import pyarrow

    labels = list(columns)
    if all(type(label) in (str, int, float, bool, type(None)) for label in labels) and (
        columns.nlevels == 1 and columns.dtype == object
    ):
        name = columns.name
        if name is None or type(name) in (str, int, float, bool):
            return {"labels": {"values": labels, "name": name}}
    _expect_plain_index(columns, "the column labels")
    try:
        table = pyarrow.Table.from_pandas(pandas.DataFrame(index=columns), preserve_index=True)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Refused(
            "conflict", f"Arrow has no type for its column labels: {safe_text(error, 300)}"
        ) from None
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"columns": base64.b64encode(sink.getvalue()).decode()}


def _expect_plain_index(index: Any, what: str = "the row labels") -> None:
    """Refuse labels that are Python objects of several types; Arrow would make something of them."""
    import pandas

    for level in range(index.nlevels):
        values = index.get_level_values(level)
        if values.dtype == object and (
            pandas.api.types.infer_dtype(values, skipna=True) not in ("string", "empty")
        ):
            raise Refused(
                "conflict", f"{what} are Python objects that Arrow cannot carry; see .astype"
            )


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
    import pandas

    kind = pandas.api.types.infer_dtype(column, skipna=True)
    if kind in _PLAIN_KINDS:
        return
    if kind == "mixed" and made.to_pylist() == column.tolist():
        return  # lists and the like
    raise Refused(
        "conflict",
        f"column {safe_text(label, LABEL_CHARS)} holds Python objects ({kind}) that Arrow would change; "
        "convert it first, with .astype(str) for one",
    )
