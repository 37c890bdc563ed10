"""Tables as CSV and JSON, in pieces of text, where pandas' own writers would lose something.

Each dtype has a converter, which makes values of JSON's own types of a column. CSV has the same values,
except for lists and dicts, which are JSON in a cell, and for infinities. The form of a value does not
depend on the piece that it is in.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from . import to_arrow
from .arrow_columns import TEXT_CHARS
from .introspection import is_a
from .safe_repr import safe_text
from .values import UNIT_NS, Converter, Limits, TooLarge, iso_duration

PIECE_ROWS = 20_000
_UNCUT = Limits(depth=100, items=sys.maxsize, text=sys.maxsize, total=sys.maxsize)
_UNITS = ("D", "s", "ms", "us", "ns")
_NAT = -(2**63)

Cells: TypeAlias = list[Any]


def csv_pieces(value: object) -> Iterator[str]:
    """A table as CSV with a header. Raises Refused for an object that is not a table."""
    units: dict[int, str] = {}
    if is_a(value, "pandas", "DataFrame"):  # other tables may be streams, which can be read once
        units = _finest_units(to_arrow.pieces(value, PIECE_ROWS))
    for number, table in enumerate(to_arrow.pieces(value, PIECE_ROWS)):
        lines = _Lines()
        writer = csv.writer(lines, lineterminator=_Lines.end)
        if number == 0:
            writer.writerow(table.columns)
        writer.writerows(_rows(table, _CSV, units))
        yield "".join(lines)


def json_pieces(value: object) -> Iterator[str]:
    """A table as a JSON array of records. Raises Refused for an object that is not a table."""
    begin = "["
    for table in to_arrow.pieces(value, PIECE_ROWS):
        names = list(table.columns)
        records = [dict(zip(names, row, strict=True)) for row in _rows(table, _JSON, {})]
        if inside := json.dumps(records, separators=(",", ":"))[1:-1]:
            yield begin + inside
            begin = ","
    yield "[]" if begin == "[" else "]"


class _Lines(list[str]):
    """The lines that `csv.writer` writes. It quotes only what contains a part of its line end."""

    end = "\r\n"

    def write(self, line: str) -> None:
        self.append(line.removesuffix(self.end) + "\n")


@dataclass(frozen=True, slots=True)
class _Format:
    """What distinguishes CSV from JSON: the form of a float, and of a list or dict."""

    number: Callable[[float], Any]
    nested: Callable[[Any], Any]


def _json_number(value: float) -> float | str | None:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_JSON = _Format(_json_number, lambda value: value)
_CSV = _Format(
    lambda value: None if math.isnan(value) else value,
    lambda value: json.dumps(value, ensure_ascii=False),
)


def _rows(table: Any, format: _Format, units: dict[int, str]) -> Iterator[tuple[Any, ...]]:
    columns = [
        _Column(format, units.get(place)).cells(column)
        for place, (_, column) in enumerate(table.items())
    ]
    return zip(*columns, strict=True) if columns else iter([()] * len(table))


def _finest_units(tables: Iterator[Any]) -> dict[int, str]:
    """The unit that each column of timestamps needs over all pieces, by position."""
    found: dict[int, int] = {}
    for table in tables:
        for place, (_, each) in enumerate(table.items()):
            if (column := _timestamps(each)) is None:
                continue
            local = column.dt.tz_localize(None).to_numpy()
            unit = 0 if column.dt.tz is None else 1
            missing = column.isna().to_numpy()
            while _UNITS[unit] != column.dt.unit and not bool(
                ((local.astype(f"M8[{_UNITS[unit]}]") == local) | missing).all()
            ):
                unit += 1
            found[place] = max(unit, found.get(place, 0))
    return {place: _UNITS[unit] for place, unit in found.items()}


def _timestamps(column: Any) -> Any:
    """The column as timestamps of pandas; None if it holds none."""
    import pandas

    dtype = column.dtype
    if isinstance(dtype, pandas.ArrowDtype) and dtype.kind == "M":
        import pyarrow

        is_date = not pyarrow.types.is_timestamp(dtype.pyarrow_dtype)
        return None if is_date else pandas.Series(_arrow_array(column).to_pandas())
    is_plain = is_a(dtype, "numpy", "dtype") and dtype.kind == "M"
    return column if is_plain or isinstance(dtype, pandas.DatetimeTZDtype) else None


def _arrow_array(column: Any) -> Any:
    import pyarrow

    return pyarrow.chunked_array(column.array.__arrow_array__())


class _Column:
    """Converts a column to cells, in the given unit of its timestamps, or in their own."""

    def __init__(self, format: _Format, unit: str | None = None) -> None:
        self._format = format
        self._unit = unit
        self._converter = Converter(_UNCUT, exact=True)

    def cells(self, column: Any) -> Cells:
        import pandas

        if (timestamps := _timestamps(column)) is not None:
            return self._timestamps(timestamps)
        dtype = column.dtype
        if is_a(dtype, "numpy", "dtype"):
            by_kind = {"f": self._floats, "m": self._durations, "i": _as_they_are}
            by_kind |= {"u": _as_they_are, "b": _as_they_are}
            return by_kind.get(dtype.kind, self._objects)(column)
        rules: list[tuple[type | tuple[type, ...], Callable[[Any], Cells]]] = [
            (pandas.ArrowDtype, self._arrow),
            (pandas.CategoricalDtype, self._categories),
            (pandas.SparseDtype, lambda column: self.cells(column.sparse.to_dense())),
            ((pandas.Float32Dtype, pandas.Float64Dtype), self._nullable_floats),
            (object, self._objects),
        ]
        return next(rule for kind, rule in rules if isinstance(dtype, kind))(column)

    def _objects(self, column: Any) -> Cells:
        missing = column.isna().tolist()
        values = column.tolist()
        return [
            None if is_missing else self._object(value)
            for value, is_missing in zip(values, missing, strict=True)
        ]

    def _object(self, value: Any) -> Any:
        kind = type(value)
        if kind is str or kind is bool:
            return value
        if issubclass(kind, float) or is_a(value, "numpy", "floating"):
            return self._format.number(float(value))
        if issubclass(kind, Decimal) and Decimal.is_infinite(value):
            return self._format.number(float(value))
        if not self._converter.knows(value):
            return safe_text(value, TEXT_CHARS)
        try:
            converted = self._converter.convert(value)
        except TooLarge:  # too deep, or it contains itself
            return safe_text(value, TEXT_CHARS)
        return self._format.nested(converted) if type(converted) in (list, dict) else converted

    def _floats(self, column: Any) -> Cells:
        return self._numbers(column.to_numpy())

    def _nullable_floats(self, column: Any) -> Cells:
        return self._numbers(column.to_numpy(column.dtype.numpy_dtype, na_value=math.nan))

    def _numbers(self, values: Any) -> Cells:
        """Floats with the digits that their own type needs: 0.1 of a float32 is 0.1."""
        if values.dtype.itemsize > 8:
            return [None if value != value else str(value) for value in values]
        if values.dtype.itemsize < 8:
            values = values.astype(str).astype(float)
        return [self._format.number(value) for value in values.tolist()]

    def _durations(self, column: Any) -> Cells:
        values = column.to_numpy()
        nanoseconds = UNIT_NS[column.dt.unit]
        return [
            None if count == _NAT else iso_duration(count * nanoseconds)
            for count in values.view("i8").tolist()
        ]

    def _timestamps(self, column: Any) -> Cells:
        """ISO 8601. pandas leaves out the parts that are zero in all of a piece."""
        import numpy

        local = column.dt.tz_localize(None).to_numpy()
        unit = self._unit or column.dt.unit
        texts = numpy.datetime_as_string(local.astype(f"M8[{unit}]")).astype(object)
        if column.dt.tz is not None:
            utc = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
            texts += _offsets(local - utc)
        texts[column.isna().to_numpy()] = None
        cells: Cells = texts.tolist()
        return cells

    def _categories(self, column: Any) -> Cells:
        import pandas

        of_code = [*self.cells(pandas.Series(column.cat.categories)), None]  # the code -1 is last
        return [of_code[code] for code in column.cat.codes.tolist()]

    def _arrow(self, column: Any) -> Cells:
        import pandas
        from pyarrow import compute, types

        array = _arrow_array(column)
        kind = array.type
        if types.is_dictionary(kind):
            return self._arrow_cells(array.cast(kind.value_type))
        if types.is_run_end_encoded(kind):
            return self._arrow_cells(compute.run_end_decode(array))
        if types.is_floating(kind):
            missing = array.is_null().to_pylist()
            numbers = self._numbers(array.fill_null(math.nan).to_numpy())
            return [None if no else number for number, no in zip(numbers, missing, strict=True)]
        if types.is_duration(kind):
            return self._durations(pandas.Series(array.to_pandas()))
        if types.is_time(kind):  # Python's times have no nanoseconds
            cells: Cells = array.cast("string").to_pylist()
            return cells
        try:
            values = array.to_pylist()
        except (ValueError, OverflowError):  # beyond Python's calendar
            values = array.cast("string").to_pylist()
        return [None if value is None else self._object(value) for value in values]

    def _arrow_cells(self, array: Any) -> Cells:
        import pandas

        return self.cells(pandas.Series(pandas.arrays.ArrowExtensionArray(array)))


def _as_they_are(column: Any) -> Cells:
    cells: Cells = column.tolist()
    return cells


def _offsets(differences: Any) -> Any:
    """The offsets of local times from UTC, as text; with seconds if they have any."""
    import numpy

    seconds = differences.astype("m8[s]").astype("i8")
    kinds, places = numpy.unique(seconds, return_inverse=True)
    texts = []
    for kind in kinds.tolist():
        minutes, rest = divmod(abs(kind), 60)
        text = f"{'-' if kind < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
        texts.append(f"{text}:{rest:02}" if rest else text)
    return numpy.array(texts, dtype=object)[places]
