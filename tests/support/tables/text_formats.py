"""What docs/api.md says of the values of a DataFrame in CSV and JSON, compared value by value.

Written without the kernel's code. `mismatches` names the cells that are not what the docs say.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pandas as pd


def mismatches(text: str, format: str, frame: pd.DataFrame) -> list[str]:
    """The cells of a table in `csv` or `json` that differ from the frame."""
    return list(_mismatches(text, format, frame))


def _mismatches(text: str, format: str, frame: pd.DataFrame) -> Iterator[str]:
    columns = [*_row_labels(frame), *_columns(frame)]
    if format == "csv":
        header, *rows = csv.reader(io.StringIO(text, newline=""))
        rows = list(rows) if columns else []
    else:
        records = json.loads(text, parse_constant=_refuse)
        header = list(records[0]) if records else None
        rows = [list(record.values()) for record in records]
    if header is not None and (len(header) != len(columns) or len(set(header)) < len(header)):
        yield f"the header is {header}"
        return
    if len(rows) != len(frame) and columns:
        yield f"{len(rows)} rows, not {len(frame)}"
        return
    for place, column in enumerate(columns):
        for row, value in enumerate(_values(column)):
            try:
                is_right = (
                    _is_csv(rows[row][place], value)
                    if format == "csv"
                    else _is_json(rows[row][place], value)
                )
            except (ValueError, TypeError, InvalidOperation, AttributeError) as error:
                is_right = False
                yield f"{error!r}"
            if not is_right:
                yield f"{rows[row][place]!r} for {value!r} of {column.dtype}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _row_labels(frame: pd.DataFrame) -> list[pd.Series]:
    index = frame.index
    if (
        type(index) is pd.RangeIndex
        and index.equals(pd.RangeIndex(len(index)))
        and index.name is None
    ):
        return []
    unnamed = index.set_names([None] * index.nlevels)
    levels = [unnamed.get_level_values(level) for level in range(index.nlevels)]
    return [pd.Series(level, dtype=level.dtype) for level in levels]


def _columns(frame: pd.DataFrame) -> list[pd.Series]:
    plain = frame.set_axis(range(frame.shape[1]), axis=1)
    return [plain[place] for place in plain.columns]


def _values(column: pd.Series) -> list[Any]:
    if isinstance(column.dtype, pd.CategoricalDtype):
        categories = _values(pd.Series(column.cat.categories))
        return [None if code < 0 else categories[code] for code in column.cat.codes]
    if isinstance(column.dtype, pd.ArrowDtype):
        import pyarrow

        return list(pyarrow.chunked_array(column.array.__arrow_array__()))
    if isinstance(column.dtype, pd.SparseDtype):
        return list(np.asarray(column.array))
    return list(column.array)


def _is_missing(value: Any) -> bool:
    return bool(pd.isna(value)) if pd.api.types.is_scalar(value) else False


def _is_csv(text: str, value: Any) -> bool:
    value = _plain(value)
    if _is_missing(value):
        return text == ""
    if isinstance(value, bool | np.bool_):
        return text == str(value)
    if isinstance(value, int | np.integer):
        return text == str(int(value)) if int(value).bit_length() < 14_000 else text != ""
    if isinstance(value, float | np.floating):
        return type(value)(text) == value and _sign(type(value)(text)) == _sign(value)
    if isinstance(value, Decimal):
        return Decimal(text) == value or value.is_nan()
    if isinstance(value, str):
        return text == value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes | bytearray):
        return base64.b64decode(text, validate=True) == value
    if isinstance(value, dict | list | set | frozenset | np.ndarray):
        json.loads(text, parse_constant=_refuse)
        return True
    return _is_time(text, value)


def _is_json(found: Any, value: Any) -> bool:
    value = _plain(value)
    if _is_missing(value):
        return found is None
    if isinstance(value, bool | np.bool_):
        return found is bool(value)
    if isinstance(value, int | np.integer):
        return type(found) in (int, str) if int(value).bit_length() > 63 else found == int(value)
    if isinstance(value, float | np.floating):
        if math.isinf(value):
            return found == ("Infinity" if value > 0 else "-Infinity")
        return type(found) in (int, float) and type(value)(found) == value
    if isinstance(value, Decimal):
        return value.is_nan() or (type(found) is str and Decimal(found) == value)
    if isinstance(value, str):
        return found.encode("utf-8", "backslashreplace") == value.encode(
            "utf-8", "backslashreplace"
        )
    if isinstance(value, bytes | bytearray):
        return base64.b64decode(found, validate=True) == value
    if isinstance(value, dict):
        return type(found) is dict and len(found) == len(value)
    if isinstance(value, list | set | frozenset | tuple):
        if type(found) is not list or len(found) != len(value):
            return False
        is_plain = not isinstance(value, set | frozenset)
        return not is_plain or all(map(_is_json, found, value))
    if isinstance(value, np.ndarray):
        return type(found) is list and len(found) == len(value)
    if not isinstance(found, str):
        return not isinstance(value, dt.date | dt.time | pd.Timestamp)
    return _is_time(found, value)


def _plain(value: Any) -> Any:
    """Arrow's scalars as Python's, unless Python cannot hold them."""
    import pyarrow

    if not isinstance(value, pyarrow.Scalar):
        return value
    if not value.is_valid:
        return None
    if pyarrow.types.is_temporal(value.type):
        return value
    return value.as_py()


def _sign(number: Any) -> bool:
    return math.copysign(1, number) < 0


def _is_time(text: str, value: Any) -> bool:
    """Whether a text is the ISO 8601 of a time; any text will do for objects that the docs do not name."""
    if isinstance(value, pd.Timestamp):
        if not -2 < value.year < 9999:
            return text != ""
        if found := re.fullmatch(r"(.+)([+-])(\d\d):(\d\d):(\d\d)", text):  # not read by pandas
            hours, minutes, seconds = map(int, found.groups()[2:])
            offset = pd.Timedelta(hours=hours, minutes=minutes, seconds=seconds)
            local = pd.Timestamp(found[1]).as_unit(value.unit).tz_localize("UTC")
            return bool((local - offset if found[2] == "+" else local + offset) == value)
        return pd.Timestamp(text) == value and (pd.Timestamp(text).tz is None) == (value.tz is None)
    if isinstance(value, dt.date | dt.time | dt.datetime):
        found = type(value).fromisoformat(text)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            # Python takes times in an hour that occurs twice for unequal to those of other zones.
            return found.astimezone(dt.UTC) == value.astimezone(dt.UTC)
        return found == value
    return bool(text)


def parquet_differences(read: Any, table: Any) -> list[str]:
    """Where the values of a Parquet file differ from the Arrow table that it was written of.

    Parquet has fewer types: its readers get the values of a dictionary, and milliseconds for seconds.
    """
    import pyarrow

    found = []
    if read.column_names != table.column_names:
        return [f"{read.column_names} is not {table.column_names}"]
    for name, one, other in zip(table.column_names, read.columns, table.columns, strict=True):
        if pyarrow.types.is_dictionary(other.type):
            other = other.cast(other.type.value_type)
        if pyarrow.types.is_dictionary(one.type):
            one = one.cast(one.type.value_type)
        if list(map(repr, one.cast(other.type))) != list(map(repr, other)):
            found.append(f"{name}: {one} is not {other}")
    return found
