"""A page of a table: some rows from any place in it, if wanted in the order of one column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import preview, readers
from .errors import Refused
from .introspection import is_a, type_name
from .safe_repr import safe_text
from .time_limit import TimeIsUp, time_limit

MAX_ROWS = 500
MAX_BYTES = 1024**2
MAX_S = 30.0
"""The time for sorting and reading, which may run the user's code."""
_ERROR_CHARS = 500


def page(
    names: Mapping[str, Any],
    name: str,
    offset: int = 0,
    limit: int = 50,
    sort_by: str | None = None,
    descending: bool = False,
) -> dict[str, Any]:
    """Return the fields of a `DataFrame` whose preview is the page; its shape is that of the table.

    Raises Refused.
    """
    if name not in names:
        raise Refused("not_found", f"there is no variable {name}")
    value = names[name]
    try:
        with time_limit(MAX_S):
            whole = readers.read(value, 0)
            if whole is None:
                kind = type_name(value)
                raise Refused(
                    "conflict", f"{name} is no table of pandas, polars or pyarrow: {kind}"
                )
            columns = preview.render(whole, name, MAX_BYTES)[0]["columns"]
            if sort_by is not None:
                if sort_by not in columns:
                    raise Refused("not_found", f"{name} has no column {safe_text(sort_by, 100)}")
                value = _sorted(value, columns.index(sort_by), descending=descending)
            table = readers.read(some_rows(value, offset, min(limit, MAX_ROWS)), MAX_ROWS)
            assert table is not None, "rows of a table are a table"
            return preview.render(replace(table, shape=whole.shape), name, MAX_BYTES)[0]
    except TimeIsUp:
        raise Refused("conflict", f"{name} could not be read within {MAX_S:g} s") from None
    except (Refused, KeyboardInterrupt):
        raise
    except BaseException as error:  # raised by a library or a user's class
        reason = safe_text(error, _ERROR_CHARS) or type_name(error)
        raise Refused("conflict", f"{name} cannot be read: {reason}") from None


def some_rows(value: Any, offset: int, limit: int | None) -> Any:
    """Return at most `limit` rows of a table from `offset` on; all if None. Raises Refused."""
    if is_a(value, "pandas", "DataFrame"):
        return value.iloc[offset : None if limit is None else offset + limit]
    if is_a(value, "polars", "DataFrame") or is_a(value, "pyarrow", "Table"):
        return value.slice(offset, limit)
    if is_a(value, "pyarrow", "RecordBatch"):
        return value.slice(offset, limit)
    raise Refused("conflict", f"it has no rows to choose from: {type_name(value)}")


def _sorted(value: Any, place: int, *, descending: bool) -> Any:
    """The table in the order of the column at this place; missing values come last."""
    if is_a(value, "pandas", "DataFrame"):
        column = value.iloc[:, place].reset_index(drop=True)
        return value.iloc[column.sort_values(ascending=not descending, kind="stable").index]
    if is_a(value, "polars", "DataFrame"):
        return value.sort(value.columns[place], descending=descending, nulls_last=True)
    order = "descending" if descending else "ascending"
    return value.sort_by([(value.schema.names[place], order)])
