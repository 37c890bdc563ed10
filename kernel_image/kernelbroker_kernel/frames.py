"""Tables of any library, as Arrow data or piece by piece as pandas has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .dataframes import LABEL_CHARS, table_of
from .objects import is_a, library_class, type_name
from .refusals import Refused
from .texts import safe_text
from .values import unique


def arrow(value: object) -> Any:
    """A pyarrow Table, or a RecordBatchReader. Raises Refused for what is no table."""
    if is_a(value, "pandas", "DataFrame"):
        return table_of(value)
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
