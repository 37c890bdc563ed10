"""Makes Python objects of the JSON that the kernel writes for columns without an Arrow type.

The forms are described in the kernel's `dataframes.py`. Only the types listed here are made, from their
values: nothing is imported by name, and no code of the sandbox runs.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

_SCALARS = "biufcmM"
"""Kinds of numpy's dtypes: bools, numbers, durations and timestamps."""


def loads(text: str) -> Any:
    """The object that the text describes.

    Raises:
        ValueError, TypeError, LookupError, ArithmeticError, RecursionError: the text describes none.
    """
    return value(json.loads(text))


def value(found: Any) -> Any:
    """The object that parsed JSON describes. Raises as `loads`."""
    if isinstance(found, list):
        return [value(item) for item in found]
    if isinstance(found, dict):
        ((kind, data),) = found.items()
        return _TYPES[kind](data)
    return found


def _fraction(text: str) -> Fraction:
    # A Fraction of "1e999999999" would take gigabytes.
    if not re.fullmatch(r"-?\d+(/\d+)?", text):
        raise ValueError("it is not a fraction of two integers")
    return Fraction(text)


def _zone(name: str) -> dt.tzinfo:
    """A zone of the system's time zone database, UTC, or an offset such as "+01:00"."""
    if re.match(r"[+-]\d", name):
        offset = dt.datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo
        assert offset is not None
        return offset
    return dt.UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def _datetime(found: str | list[Any]) -> dt.datetime:
    if isinstance(found, str):
        return dt.datetime.fromisoformat(found)
    text, zone, fold = found
    return dt.datetime.fromisoformat(text).replace(tzinfo=_zone(zone), fold=fold)


def _timestamp(found: list[Any]) -> Any:
    import numpy
    import pandas

    count, unit, zone = found
    moment = pandas.Timestamp(numpy.datetime64(count, unit))
    return moment if zone is None else moment.tz_localize("UTC").tz_convert(_zone(zone))


def _timedelta(found: list[Any]) -> Any:
    import numpy
    import pandas

    return pandas.Timedelta(numpy.timedelta64(*found))


def _period(found: list[Any]) -> Any:
    import pandas

    ordinal, freq = found
    return pandas.Period(ordinal=ordinal, freq=freq)


def _interval(found: list[Any]) -> Any:
    import pandas

    left, right, closed = found
    return pandas.Interval(value(left), value(right), closed)


def _scalar(found: list[Any]) -> Any:
    dtype, item = found
    return _array([dtype, [], [item]])[()]


def _array(found: list[Any]) -> Any:
    import numpy

    name, shape, items = found
    dtype = numpy.dtype(name)
    if math.prod(shape) != len(items):
        raise ValueError("the array has another number of values")
    if dtype.kind == "O":
        array = numpy.empty(len(items), object)
        for place, item in enumerate(items):
            array[place] = value(item)
    elif dtype.kind in _SCALARS and dtype.names is None:
        numbers = numpy.array([value(item) for item in items], _carrier(dtype))
        array = numbers.view(dtype) if dtype.kind in "mM" else numbers
    else:
        raise ValueError(f"arrays do not come as {dtype}")
    return array.reshape(shape)


def _carrier(dtype: Any) -> Any:
    """Timestamps and durations come as integers."""
    return "int64" if dtype.kind in "mM" else dtype


def _missing(name: str) -> Callable[[Any], Any]:
    def made(_: Any) -> Any:
        import pandas

        return getattr(pandas, name)

    return made


def _values(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda items: kind([value(item) for item in items])


_TYPES: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "complex": lambda parts: complex(*map(value, parts)),
    "decimal": Decimal,
    "fraction": _fraction,
    "uuid": UUID,
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "tuple": _values(tuple),
    "set": _values(set),
    "frozenset": _values(frozenset),
    "dict": lambda pairs: {value(key): value(item) for key, item in pairs},
    "range": lambda parts: range(*parts),
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "datetime": _datetime,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "NA": _missing("NA"),
    "NaT": _missing("NaT"),
    "Timestamp": _timestamp,
    "Timedelta": _timedelta,
    "Period": _period,
    "Interval": _interval,
    "numpy": _scalar,
    "array": _array,
}
