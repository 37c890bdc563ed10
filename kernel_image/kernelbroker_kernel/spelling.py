"""Tables as CSV and JSON, in pieces of text, where pandas' own way would lose something.

What a piece looks like does not decide how its values are written.
"""

from __future__ import annotations

import json as json_
import math
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from . import frames
from .objects import is_a
from .values import Converter, Limits

PIECE_ROWS = 20_000
_BYTES = (bytes, bytearray, memoryview)
_NESTED = (dict, list, tuple, set, frozenset)
_UNCUT = Limits(depth=100, items=sys.maxsize, text=sys.maxsize, total=sys.maxsize)
_UNITS = ("D", "s", "ms", "us", "ns")


def csv(value: object) -> Iterator[str]:
    """With a header. Raises Refused for what is no table."""
    units: dict[int, str] = {}
    if is_a(value, "pandas", "DataFrame"):  # others may be streams, which are seen once
        units = _finest(frames.pieces(value, PIECE_ROWS))
    for number, table in enumerate(frames.pieces(value, PIECE_ROWS)):
        _spell(table, nested=lambda value: json_.dumps(value, ensure_ascii=False))
        _spell_moments(table, units)
        yield table.to_csv(index=False, header=number == 0, lineterminator="\n")


def json(value: object) -> Iterator[str]:
    """An array of records. Raises Refused for what is no table."""
    begin = "["
    for table in frames.pieces(value, PIECE_ROWS):
        _spell(table, nested=lambda value: value)
        if inside := json_.dumps(_records(table), separators=(",", ":"))[1:-1]:
            yield begin + inside
            begin = ","
    yield "[]" if begin == "[" else "]"


def _spell(table: Any, nested: Callable[[Any], Any]) -> None:
    """Put base64 in the place of bytes, and what `nested` makes of their JSON in that of nested values.

    pandas itself would write Python's notation for both, or numpy's, which leaves out what is long.
    """
    import pandas

    converter = Converter(_UNCUT, exact=True)

    def spelled(value: Any) -> Any:
        if issubclass(type(value), _BYTES):
            return converter.convert(value)
        is_nested = issubclass(type(value), _NESTED) or is_a(value, "numpy", "ndarray")
        return nested(converter.convert(value)) if is_nested else value

    for place, dtype in enumerate(table.dtypes):
        if dtype.kind == "O" and is_a(dtype, "numpy", "dtype"):
            column = table.iloc[:, place]
            if pandas.api.types.infer_dtype(column, skipna=True).startswith(("bytes", "mixed")):
                items = [spelled(value) for value in column]
                table.isetitem(place, pandas.Series(items, index=column.index, dtype=object))


def _finest(tables: Iterator[Any]) -> dict[int, str]:
    """The unit that each column of moments needs, by its position, over all pieces."""
    found: dict[int, int] = {}
    for table in tables:
        for place, column in _moments(table):
            local = column.dt.tz_localize(None).to_numpy()
            unit = 0 if column.dt.tz is None else 1
            missing = column.isna().to_numpy()
            while _UNITS[unit] != column.dt.unit and not bool(
                ((local.astype(f"M8[{_UNITS[unit]}]") == local) | missing).all()
            ):
                unit += 1
            found[place] = max(unit, found.get(place, 0))
    return {place: _UNITS[unit] for place, unit in found.items()}


def _spell_moments(table: Any, units: dict[int, str]) -> None:
    """Put ISO 8601 in the place of moments, in the unit given for the column, or in its own.

    pandas itself leaves out what is zero in all of a piece.
    """
    import numpy
    import pandas

    for place, column in _moments(table):
        local = column.dt.tz_localize(None).to_numpy()
        unit = units.get(place, column.dt.unit)
        texts = numpy.datetime_as_string(local.astype(f"M8[{unit}]")).astype(object)
        if column.dt.tz is not None:
            moments = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
            texts += _offsets(local - moments)
        texts[column.isna().to_numpy()] = None
        table.isetitem(place, pandas.Series(texts, column.index, dtype=object))


def _moments(table: Any) -> Iterator[tuple[int, Any]]:
    import pandas

    for place, dtype in enumerate(table.dtypes):
        is_plain = is_a(dtype, "numpy", "dtype") and dtype.kind == "M"
        if is_plain or isinstance(dtype, pandas.DatetimeTZDtype):
            yield place, table.iloc[:, place]


def _offsets(differences: Any) -> Any:
    """Of local times from UTC, as text."""
    import numpy

    seconds = differences.astype("m8[s]").astype("i8")
    kinds, places = numpy.unique(seconds, return_inverse=True)
    texts = [
        f"{'-' if kind < 0 else '+'}{abs(kind) // 3600:02}:{abs(kind) // 60 % 60:02}"
        for kind in kinds.tolist()
    ]
    return numpy.array(texts, dtype=object)[places]


def _records(table: Any) -> list[dict[str, Any]]:
    """The rows as JSON has them. pandas itself writes ten decimals of a float."""
    columns = [_json(table.iloc[:, place]) for place in range(table.shape[1])]
    names = list(table.columns)
    if not columns:
        return [{} for _ in range(len(table))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _json(column: Any) -> list[Any]:
    import pandas

    if (
        isinstance(column.dtype, pandas.CategoricalDtype)
        and column.cat.categories.dtype.kind == "f"
    ):
        column = column.astype(column.cat.categories.dtype)
    if column.dtype.kind == "f":
        return [_number(value) for value in column.to_numpy("float64", na_value=math.nan).tolist()]
    unit = "ns" if "[ns" in str(column.dtype) else "us"
    text = column.to_json(orient="values", date_format="iso", date_unit=unit, default_handler=str)
    values: list[Any] = json_.loads(text)
    if column.dtype.kind == "O" and is_a(column.dtype, "numpy", "dtype"):
        for place, value in enumerate(column.tolist()):
            if issubclass(type(value), float | Decimal) or is_a(value, "numpy", "floating"):
                values[place] = _number(float(value))
            elif type(value) in (list, dict):  # what `_spell` has made
                values[place] = value
    return values


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
