"""Python objects that Arrow has no type for, as JSON from which the SDK makes them again.

`dataframes` describes the forms. Only exact types have one: an instance of a derived class is replaced by
an instance of the builtin class, and an instance of any other class by text.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

from .introspection import library_class, type_name
from .safe_repr import safe_text

_MAX_DEPTH = 100
_MAX_INT_BITS = 14_000
"""Python neither writes nor reads decimal numbers of more than 4,300 digits."""
_TEXT_CHARS = 100_000
_NUMPY_KINDS = "biufcmM"
_LONG_DOUBLES = "gG"


class _Unfit(Exception):
    """The value has no form."""


class Encoder:
    """Writes objects as JSON.

    Attributes:
        replaced: the names of the classes whose instances were replaced, and what they became.
    """

    def __init__(self) -> None:
        self.replaced: dict[str, str] = {}
        self._depth = 0
        self._forms: dict[type, Callable[[Any], Any]] = {
            **self._builtin_forms(),
            **_pandas_forms(self),
        }
        self._generic = library_class("numpy", "generic")
        self._array = library_class("numpy", "ndarray")

    def dumps(self, value: object) -> str:
        """The value as JSON in ASCII, since Arrow's texts have no lone surrogates."""
        return json.dumps(self.encode(value), separators=(",", ":"))

    def described(self) -> tuple[str, str]:
        """The problem with the replaced instances, and what comes in their place."""
        kinds = list(self.replaced.items())[:5]
        problem = (
            f"holds Python objects ({', '.join(kind for kind, _ in kinds)}) that Arrow cannot carry"
        )
        return problem, ", ".join(f"{kind} as {given}" for kind, given in kinds)

    def encode(self, value: object) -> Any:
        """The value as a tree of JSON's own types."""
        kind = type(value)
        if kind is str or value is None or kind is bool:
            return value
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                raise _Unfit
            if (form := self._forms.get(kind)) is not None:
                return form(value)
            if self._generic is not None and issubclass(kind, self._generic):
                return self._scalar(value)
            if kind is self._array:
                return self._ndarray(value)
            raise _Unfit
        except _Unfit:
            return self._replaced(value)
        finally:
            self._depth -= 1

    def _replaced(self, value: Any) -> Any:
        kind = type(value)
        if self._depth <= _MAX_DEPTH and not issubclass(kind, Enum):
            for base, read in _BASES.items():
                if issubclass(kind, base) and kind is not base:
                    self.replaced[type_name(value)] = base.__name__
                    return self.encode(read(value))
        self.replaced[type_name(value)] = "text"
        if issubclass(kind, Enum):
            return f"{type_name(value)}.{safe_text(value.name, _TEXT_CHARS)}"
        return safe_text(value, _TEXT_CHARS)

    def _items(self, values: Any) -> list[Any]:
        return [self.encode(value) for value in values]

    def _builtin_forms(self) -> dict[type, Callable[[Any], Any]]:
        return {
            int: lambda value: (
                value if value.bit_length() <= _MAX_INT_BITS else {"int": hex(value)}
            ),
            float: lambda value: value if math.isfinite(value) else {"float": repr(value)},
            complex: lambda value: {"complex": self._items([value.real, value.imag])},
            list: self._items,
            tuple: lambda value: {"tuple": self._items(value)},
            set: lambda value: {"set": self._items(value)},
            frozenset: lambda value: {"frozenset": self._items(value)},
            dict: lambda value: {"dict": [self._items(pair) for pair in value.items()]},
            range: lambda value: {"range": [value.start, value.stop, value.step]},
            Decimal: lambda value: {"decimal": str(value)},
            Fraction: _fraction,
            UUID: lambda value: {"uuid": str(value)},
            bytes: lambda value: {"bytes": base64.b64encode(value).decode()},
            bytearray: lambda value: {"bytearray": base64.b64encode(value).decode()},
            dt.date: lambda value: {"date": value.isoformat()},
            dt.time: _time,
            dt.datetime: _datetime,
            dt.timedelta: lambda value: {
                "timedelta": [value.days, value.seconds, value.microseconds]
            },
        }

    def _scalar(self, value: Any) -> Any:
        dtype = value.dtype
        if dtype.type is not type(value):
            raise _Unfit
        return {"numpy": [_numpy_type(dtype), *self._numbers(value.reshape(1))]}

    def _ndarray(self, value: Any) -> Any:
        if value.dtype.kind == "O":
            return {"array": ["O", list(value.shape), self._items(value.ravel().tolist())]}
        dtype = _numpy_type(value.dtype)
        return {"array": [dtype, list(value.shape), self._numbers(value.ravel())]}

    def _numbers(self, values: Any) -> list[Any]:
        return self._items((values.view("i8") if values.dtype.kind in "mM" else values).tolist())


def _numpy_type(dtype: Any) -> str:
    if dtype.kind not in _NUMPY_KINDS or dtype.char in _LONG_DOUBLES or not dtype.isnative:
        raise _Unfit
    return str(dtype.str)


def _fraction(value: Fraction) -> Any:
    if max(abs(value.numerator), value.denominator).bit_length() > _MAX_INT_BITS:
        raise _Unfit
    return {"fraction": f"{value.numerator}/{value.denominator}"}


def _time(value: dt.time) -> Any:
    if value.fold or type(value.tzinfo) not in (type(None), dt.timezone):
        raise _Unfit
    _zone(value.tzinfo)
    return {"time": value.isoformat()}


def _datetime(value: dt.datetime) -> Any:
    zone = _zone(value.tzinfo)
    if zone is None:
        if value.fold:
            raise _Unfit
        return {"datetime": value.isoformat()}
    return {"datetime": [value.replace(tzinfo=None, fold=0).isoformat(), zone, value.fold]}


def _zone(zone: dt.tzinfo | None) -> str | None:
    """The name of a zone: of the time zone database, or an offset."""
    if zone is None:
        return None
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return zone.key
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        if repr(zone) == repr(dt.timezone(offset)):
            return "UTC" if not offset else dt.time(tzinfo=zone).isoformat()[8:]
    raise _Unfit


def _pandas_forms(encoder: Encoder) -> dict[type, Callable[[Any], Any]]:
    """The forms of the classes of pandas, if it is loaded."""

    def timestamp(value: Any) -> Any:
        count = int(value.to_datetime64().view("i8"))
        return {"Timestamp": [count, value.unit, _zone(value.tz)]}

    def timedelta(value: Any) -> Any:
        return {"Timedelta": [int(value.to_timedelta64().view("i8")), value.unit]}

    forms: list[tuple[str, str, Callable[[Any], Any]]] = [
        ("pandas._libs.missing", "NAType", lambda _: {"NA": None}),
        ("pandas._libs.tslibs.nattype", "NaTType", lambda _: {"NaT": None}),
        ("pandas", "Timestamp", timestamp),
        ("pandas", "Timedelta", timedelta),
        ("pandas", "Period", lambda value: {"Period": [value.ordinal, value.freqstr]}),
        (
            "pandas",
            "Interval",
            lambda value: {
                "Interval": [encoder.encode(value.left), encoder.encode(value.right), value.closed]
            },
        ),
    ]
    found = [(library_class(module, name), form) for module, name, form in forms]
    return {known: form for known, form in found if known is not None}


_BASES: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
"""Builtin classes, and how to read an instance of a derived class, which may override any method."""
