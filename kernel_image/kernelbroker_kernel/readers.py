"""The facts and first rows of the tables of pandas, polars and pyarrow.

The cost does not grow with the number of rows: the head is taken first, and all else is done with it. A
polars LazyFrame is not read, since it has no rows before the user runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .introspection import is_a, labels_of, levels_of
from .preview import Index, Table
from .safe_repr import safe_text

LISTED_COLUMNS = 1_000
PREVIEWED_COLUMNS = 200
DTYPE_CHARS = 200
SAMPLE = 1_000
"""The values of one column of Python objects whose size is measured."""
MAX_SIZED = 100_000
"""The measured values of all columns. With more than 100 such columns the samples are smaller."""


def read(value: Any, rows: int) -> Table | None:
    """The table with at most `rows` rows for the preview; None for other objects."""
    if is_a(value, "pandas", "DataFrame"):
        return _pandas(value, rows)
    if is_a(value, "polars", "DataFrame"):
        return _polars(value, rows)
    if is_a(value, "pyarrow", "Table") or is_a(value, "pyarrow", "RecordBatch"):
        return _pyarrow(value, rows)
    return None


def series_items(series: Any) -> list[Any]:
    """The values of a pandas or polars Series (or a pandas Index).

    Those of Arrow's types are Arrow's scalars, since Python's times have no nanoseconds. Scalars are also
    converted one by one: a timestamp beyond Python's calendar affects no other.
    """
    ways: list[Callable[[], list[Any]]] = [series.to_list]
    if is_a(series, "polars", "Series"):
        ways.append(lambda: series.cast(str).to_list())
        if _has_nanoseconds(series.dtype):
            ways.insert(0, lambda: list(series.to_arrow()))
    else:
        ways.append(lambda: series.astype(str).to_list())  # beyond Python's calendar, for example
        if is_a(series.dtype, "pandas", "ArrowDtype"):
            ways.insert(0, lambda: _arrow_scalars(series.array))
    return _first_that_works(*ways, lambda: ["<unreadable>"] * len(series))


def _arrow_scalars(array: Any) -> list[Any]:
    return list(sys.modules["pyarrow"].chunked_array(array.__arrow_array__()))


def _has_nanoseconds(dtype: Any) -> bool:
    return "Time" in str(dtype) or "'ns'" in str(dtype)


def _first_that_works(*ways: Callable[[], list[Any]]) -> list[Any]:
    for way in ways[:-1]:
        try:
            return way()
        except KeyboardInterrupt:
            raise
        except BaseException:
            continue
    return ways[-1]()


def _dtypes(dtypes: Any) -> list[str]:
    return [safe_text(dtype, DTYPE_CHARS) for dtype in dtypes]


def _pandas(frame: Any, rows: int) -> Table:
    head = frame.iloc[:rows, :PREVIEWED_COLUMNS]
    columns = frame.columns[:LISTED_COLUMNS]
    index = head.index
    levels = levels_of(index)
    return Table(
        kind="pandas",
        shape=(len(frame.index), len(frame.columns)),
        labels=labels_of(columns),
        levels_joined=columns.nlevels > 1,
        dtypes=_dtypes(frame.iloc[:0, :LISTED_COLUMNS].dtypes),
        columns=[series_items(column) for column in _columns(head)],
        head=len(index),
        memory_usage=_pandas_memory(frame),
        index=Index(
            names=list(index.names),
            dtypes=_dtypes(level.dtype for level in levels),
            levels=[series_items(level) for level in levels],
            is_default=_is_default(index),
        ),
    )


def _columns(frame: Any) -> list[Any]:
    """The columns, also those that share a label. A third of the time of `frame.iloc[:, place]`."""
    return [column for _, column in sys.modules["pandas"].DataFrame.items(frame)]


def _is_default(index: Any) -> bool:
    """Whether the labels only number the rows. Asks the dtype first: not all of Arrow's can be compared."""
    numbers = sys.modules["pandas"].RangeIndex(len(index))
    return bool(index.dtype == numbers.dtype and index.equals(numbers) and index.names == [None])


def _pandas_memory(frame: Any) -> int:
    """Bytes of the columns and the index. Those of unlisted columns are estimated."""
    index = frame.index
    if index.nlevels > 1:  # its own `nbytes` may build a lookup table of all rows
        index_bytes = sum(part.nbytes for part in (*index.codes, *index.levels))
    else:
        index_bytes = index.nbytes + _objects_memory([index])
    columns = _columns(frame.iloc[:, :LISTED_COLUMNS])
    listed_bytes = sum(column.nbytes for column in columns) + _objects_memory(columns)
    return int(index_bytes + listed_bytes * frame.shape[1] / max(1, len(columns)))


def _objects_memory(columns: list[Any]) -> int:
    """Bytes of the texts in columns of Python objects, estimated from a sample."""
    columns = [
        column
        for column in columns
        if column.dtype == object or getattr(column.dtype, "storage", None) == "python"
    ]
    total = 0
    for column in columns:
        sample = min(SAMPLE, MAX_SIZED // len(columns))
        items = column[:: max(1, len(column) // sample)].tolist() if len(column) else []
        sized = sum(sys.getsizeof(item) for item in items if type(item) in (str, bytes))
        total += sized * len(column) // max(1, len(items))
    return total


def _polars(frame: Any, rows: int) -> Table:
    head = frame.head(rows)
    previewed = frame.columns[:PREVIEWED_COLUMNS]
    return Table(
        kind="polars",
        shape=frame.shape,
        labels=frame.columns[:LISTED_COLUMNS],
        dtypes=_dtypes(frame.dtypes[:LISTED_COLUMNS]),
        columns=[series_items(head.get_column(name)) for name in previewed],
        head=head.height,
        memory_usage=frame.estimated_size(),
    )


def _pyarrow(table: Any, rows: int) -> Table:
    head = table.slice(0, rows)
    return Table(
        kind="pyarrow",
        shape=(table.num_rows, table.num_columns),
        labels=table.schema.names[:LISTED_COLUMNS],
        dtypes=_dtypes(table.schema.types[:LISTED_COLUMNS]),
        # As scalars, which convert one by one: a timestamp beyond Python's calendar affects no other.
        columns=[list(column) for column in head.columns[:PREVIEWED_COLUMNS]],
        head=min(rows, table.num_rows),  # the head of a table without columns has any number
        memory_usage=table.nbytes,
    )
