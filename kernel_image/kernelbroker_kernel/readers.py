"""The facts and first rows of the tables of pandas, polars and pyarrow.

The cost does not grow with the rows: the head is taken first, and all else is done with it. A polars
LazyFrame is no table here: it has no rows before it is run, and that is for the user to decide.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .objects import is_a
from .tables import Index, Table
from .texts import safe_text

LISTED_COLUMNS = 1_000
PREVIEWED_COLUMNS = 200
DTYPE_CHARS = 200
SAMPLE = 1_000
"""Values of a column of Python objects that are sized."""
MAX_SIZED = 100_000
"""Such values in all; with more than 100 such columns the samples get smaller."""


def read(value: Any, rows: int) -> Table | None:
    """The table with at most `rows` rows for the preview; null for what is none."""
    if is_a(value, "pandas", "DataFrame"):
        return _pandas(value, rows)
    if is_a(value, "polars", "DataFrame"):
        return _polars(value, rows)
    if is_a(value, "pyarrow", "Table") or is_a(value, "pyarrow", "RecordBatch"):
        return _pyarrow(value, rows)
    return None


def series_items(series: Any) -> list[Any]:
    """The values of a pandas or polars Series (or a pandas Index)."""
    as_type = series.cast if is_a(series, "polars", "Series") else series.astype
    return _first_that_works(
        series.to_list,
        lambda: as_type(str).to_list(),  # moments beyond Python's calendar, say
        lambda: ["<unreadable>"] * len(series),
    )


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
    pandas = sys.modules["pandas"]
    head = frame.iloc[:rows, :PREVIEWED_COLUMNS]
    columns = frame.columns[:LISTED_COLUMNS]
    index = head.index
    levels = [index.get_level_values(level) for level in range(index.nlevels)]
    return Table(
        kind="pandas",
        shape=(len(frame.index), len(frame.columns)),
        labels=list(columns),
        levels_joined=columns.nlevels > 1,
        dtypes=_dtypes(frame.iloc[:0, :LISTED_COLUMNS].dtypes),
        columns=[series_items(head.iloc[:, place]) for place in range(head.shape[1])],
        head=len(index),
        memory_usage=_pandas_memory(frame),
        index=Index(
            names=list(index.names),
            dtypes=_dtypes(level.dtype for level in levels),
            levels=[series_items(level) for level in levels],
            is_default=index.equals(pandas.RangeIndex(len(index))) and index.names == [None],
        ),
    )


def _pandas_memory(frame: Any) -> int:
    """What the columns and the index hold; columns beyond those listed count as the listed do."""
    index = frame.index
    if index.nlevels > 1:  # its own `nbytes` may build a lookup table of all rows
        index_bytes = sum(part.nbytes for part in (*index.codes, *index.levels))
    else:
        index_bytes = index.nbytes + _objects_memory([index])
    listed = frame.iloc[:, :LISTED_COLUMNS]
    columns = [listed.iloc[:, place] for place in range(listed.shape[1])]
    listed_bytes = sum(column.nbytes for column in columns) + _objects_memory(columns)
    return int(index_bytes + listed_bytes * frame.shape[1] / max(1, len(columns)))


def _objects_memory(columns: list[Any]) -> int:
    """What the texts and bytes in columns of Python objects take, estimated from a sample."""
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
        # As scalars, which convert one by one: a moment that Python has not, harms no other.
        columns=[list(column) for column in head.columns[:PREVIEWED_COLUMNS]],
        head=min(rows, table.num_rows),  # the head of a table without columns has any number
        memory_usage=table.nbytes,
    )
