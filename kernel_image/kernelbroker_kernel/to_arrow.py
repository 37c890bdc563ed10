"""Tables of any library as Arrow data, or as pandas DataFrames in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .arrow_columns import TEXT_CHARS, plain_text
from .changes import NAME_CHARS, Changes, Part
from .dataframes import table_of, with_metadata
from .errors import Refused
from .introspection import is_a, labels_of, library_class, type_name
from .safe_repr import safe_text
from .values import unique


def arrow_table(value: object, changes: Changes | None = None) -> Any:
    """A pyarrow Table, or a RecordBatchReader. Its metadata lists the changes.

    Raises Refused for an object that is no table, and for changes that are not allowed.
    """
    changes = changes or Changes()
    if is_a(value, "pandas", "DataFrame"):
        return table_of(value, changes)
    if is_a(value, "polars", "DataFrame"):
        return _of_polars(value, changes)
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
    """The table as pandas DataFrames of `rows` rows, at least one, whose labels are unique texts.

    Row labels become columns, unless they are the default numbers.
    """
    if is_a(value, "pandas", "DataFrame"):
        frame: Any = value
        for start in range(0, max(1, len(frame)), rows):
            yield _flat(frame.iloc[start : start + rows], _has_default_index(frame))
        return
    source = arrow_table(value, Changes(are_allowed=True))  # what Arrow has no type for, as text
    import pandas
    import pyarrow

    reader = source if is_stream(source) else source.to_reader(max_chunksize=rows)
    is_empty = True
    for batch in reader:
        is_empty = False
        for start in range(0, max(1, batch.num_rows), rows):
            table = pyarrow.Table.from_batches([batch.slice(start, rows)])
            yield _flat(table.to_pandas(types_mapper=pandas.ArrowDtype, ignore_metadata=True), True)
    if is_empty:
        empty = source.schema.empty_table()
        yield _flat(empty.to_pandas(types_mapper=pandas.ArrowDtype, ignore_metadata=True), True)


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
    frame = frame.copy(deep=False)
    frame.flags.allows_duplicate_labels = True  # those of the row labels may repeat others
    if not without_index:
        index = frame.index.set_names(list(range(frame.index.nlevels))).to_frame(index=False)
        names = [
            f"level_{place}" if name is None else name
            for place, name in enumerate(frame.index.names)
        ]
        if frame.index.nlevels == 1 and frame.index.name is None:
            names = ["index"]
        labels = [*names, *labels_of(frame.columns)]
        index.index = frame.index
        import pandas

        frame = pandas.concat([index, frame], axis=1)
    else:
        labels = labels_of(frame.columns)
    frame.columns = unique(plain_text(label, NAME_CHARS) for label in labels)
    return frame


def _of_polars(frame: Any, changes: Changes) -> Any:
    import polars

    known: Any = library_class("polars", "DataFrame")  # a derived class may override anything
    columns = [_fitting(column, changes) for column in known.get_columns(frame)]
    table = polars.DataFrame(columns).to_arrow(compat_level=polars.CompatLevel.oldest())
    return with_metadata(table, {"changes": changes.made} if changes.made else {})


def _fitting(column: Any, changes: Changes) -> Any:
    """The column, or its values as text, if Arrow has no type for them."""
    import polars
    import pyarrow

    if column.dtype == polars.Object:  # Arrow would get the objects' addresses
        problem = "holds Python objects, which Arrow cannot carry"
    else:
        try:
            column.head(0).to_arrow()
        except pyarrow.ArrowException:
            problem = f"is {safe_text(column.dtype, NAME_CHARS)}, which Arrow does not have"
        else:
            return column
    changes.add(Part("column", column.name), problem, "text")
    items = column.to_list()
    texts = [None if item is None else plain_text(item, TEXT_CHARS) for item in items]
    return polars.Series(column.name, texts, polars.String)
