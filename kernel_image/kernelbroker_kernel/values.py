"""Any single Python value as JSON: the cells of tables, and the values of variables.

Values of Python and its libraries have the forms that readers of JSON expect. Missing ones (NaN, NaT, NA)
are null; infinities and complex numbers text; timestamps ISO 8601 with their zone; durations ISO 8601
(`P1DT2H3M4.5S`, with a leading minus if negative); bytes base64; sets and arrays lists; keys text. Any
other object is its `repr`, cut, which is the only user code that runs here; its errors are caught. Tables
are in `preview`, summaries in `return_value`.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import islice
from pathlib import PurePath
from typing import Any, TypeAlias
from uuid import UUID

from .introspection import Shapes, is_a, library_class, type_name
from .safe_repr import ELLIPSIS, cut, safe_repr

Json: TypeAlias = Any
"""None, bool, int, finite float, str, and lists and dicts (with text keys) of these."""

Rule: TypeAlias = Callable[[Any], Any]

CELL_REPR_CHARS = 200
_ITEM_CHARS = 8
"""The cost of an item, in addition to its text."""
_PAIR_CHARS = 20
"""The least cost of an item of a dict: its JSON has at least five bytes, that of another item two."""
_MAX_INT_BITS = 14_000
"""Python neither writes nor reads integers of more than 4,300 digits; they are hexadecimal text."""


class TooLarge(Exception):
    """The value exceeds the limits, and must not be cut."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one value: depth, items of a container, characters of a text, characters in all."""

    depth: int
    items: int
    text: int
    total: int


CELL = Limits(depth=6, items=100, text=10_000, total=20_000)


def json_size(value: Json) -> int:
    """Bytes of the value as JSON in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return len(text.encode("utf-8", "surrogatepass"))


def unique(texts: Iterable[str]) -> list[str]:
    """The texts as unique keys: a repeated one gets ".1", ".2" and so on, as in pandas' CSV headers."""
    texts = list(texts)
    taken = set(texts)
    used: set[str] = set()
    repeats: dict[str, int] = {}
    keys = []
    for text in texts:
        key = text
        while key in used or (key != text and key in taken):
            repeats[text] = repeats.get(text, 0) + 1
            key = f"{text}.{repeats[text]}"
        used.add(key)
        keys.append(key)
    return keys


class Converter:
    """Converts values to JSON, each within the same limits.

    What exceeds them is cut and marked with an ellipsis; with `exact`, `TooLarge` is raised.

    Attributes:
        cut_values: the number of converted values of which something was cut.
    """

    def __init__(self, limits: Limits, *, exact: bool = False) -> None:
        self._limits = limits
        self._exact = exact
        self._left = 0
        self._is_cut = False
        self.cut_values = 0
        array = library_class("numpy", "ndarray")
        self._containers = (dict, *_SEQUENCES, *([array] if array else []))
        self._rules = [*_library_rules(), *self._builtin_rules()]
        self._rule_of: dict[type, Rule | None] = {}

    def convert(self, value: object) -> Json:
        self._left = self._limits.total
        self._is_cut = False
        converted = self._convert(value, 0)
        self.cut_values += self._is_cut
        return converted

    def knows(self, value: object) -> bool:
        """Whether the value has a JSON form other than its `repr`."""
        return issubclass(type(value), self._containers) or self._rule(type(value)) is not None

    def _convert(self, value: object, depth: int) -> Json:
        self._left -= _ITEM_CHARS
        if depth > self._limits.depth:
            return self._over()
        try:
            if (rule := self._rule(type(value))) is not None:
                found = rule(value)
                if found is None or type(found) in _PLAIN:
                    return found
                return self._text(found) if type(found) is str else self._convert(found, depth + 1)
            if issubclass(type(value), self._containers):
                return self._container(value, depth)
        except (TooLarge, KeyboardInterrupt):
            raise
        except BaseException:
            pass
        return self._text(safe_repr(value, CELL_REPR_CHARS))

    def _text(self, text: str) -> str:
        limit = min(self._limits.text, max(1, self._left))
        if len(text) > limit:
            self._over()
        self._left -= len(text)
        return cut(text, limit)

    def _container(self, value: Any, depth: int) -> Json:
        if depth == self._limits.depth or self._left <= 0:
            return self._over()
        limit = self._limits.items
        kind = type(value)
        # The builtin class's own methods: a derived class may override them.
        if issubclass(kind, dict):
            if self._exact and _PAIR_CHARS * dict.__len__(value) > self._left:
                raise TooLarge  # seen at once, not after the conversion of most items
            pairs = list(islice(dict.items(value), limit))
            if more := dict.__len__(value) - len(pairs):
                pairs.append((self._over(), f"{more} more"))
            keys = unique(self._key(key, depth) for key, _ in pairs)
            items = [self._convert(item, depth + 1) for _, item in pairs]
            return dict(zip(keys, items, strict=True))
        base = next(base for base in self._containers if issubclass(kind, base))
        if base in _SEQUENCES:
            head = list(islice(base.__iter__(value), limit))
        elif value.ndim == 0:  # a numpy array
            return self._convert(value[()], depth + 1)
        else:
            if is_a(value, "numpy", "matrix"):  # whose rows are matrices again
                value = value.view(base)
            head = list(value[:limit])
        if more := base.__len__(value) - len(head):
            head.append(f"{self._over()} {more} more")
        return [self._convert(item, depth + 1) for item in head]

    def _over(self) -> str:
        """The mark of a cut, at a limit. Raises TooLarge if nothing may be cut."""
        if self._exact:
            raise TooLarge
        self._is_cut = True
        return ELLIPSIS

    def _key(self, key: object, depth: int) -> str:
        if issubclass(type(key), self._containers):
            return self._text(safe_repr(key, CELL_REPR_CHARS))
        text = self._convert(key, depth)
        return text if type(text) is str else json.dumps(text)

    def _rule(self, kind: type) -> Rule | None:
        if kind not in self._rule_of:
            rules = (rule for known, rule in self._rules if issubclass(kind, known))
            self._rule_of[kind] = next(rules, None)
        return self._rule_of[kind]

    def _builtin_rules(self) -> list[tuple[type, Rule]]:
        """The rules of builtin classes. The first match is used: a datetime is also a date."""
        return [
            (type(None), lambda _: None),
            (bool, bool),
            (Enum, lambda value: f"{type_name(value)}.{value.name}"),
            (str, str.__str__),
            (int, _integer),
            (float, _number),
            (complex, str),
            (Fraction, Fraction.__str__),
            (Decimal, lambda value: None if Decimal.is_nan(value) else Decimal.__str__(value)),
            (bytes, self._base64),
            (bytearray, self._base64),
            (memoryview, lambda value: self._base64(value.tobytes())),
            (datetime, datetime.isoformat),
            (date, date.isoformat),
            (time, time.isoformat),
            (timedelta, _duration),
            (UUID, UUID.__str__),
            (PurePath, str),
        ]

    def _base64(self, value: bytes | bytearray) -> str:
        shown = self._limits.text * 3 // 4
        return base64.b64encode(value[:shown]).decode() + (
            self._over() if len(value) > shown else ""
        )


_PLAIN = frozenset({bool, int, float})
UNIT_NS = {
    "W": 604_800 * 10**9,
    "D": 86_400 * 10**9,
    "h": 3_600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
"""Years and months have no fixed length; a duration in them keeps its own form."""
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)


def _library_rules() -> list[tuple[type, Rule]]:
    """The rules for the classes of libraries that are loaded."""
    shapes = Shapes()

    def named(value: Any) -> str:
        """A table within a value is reported by its shape, since its repr may take long."""
        return f"<{type_name(value)} {tuple(shapes.shape(value) or ())}>"

    rules: list[tuple[str, str, Rule]] = [
        ("pandas._libs.tslibs.nattype", "NaTType", lambda _: None),
        ("pandas._libs.missing", "NAType", lambda _: None),
        ("pandas", "Timestamp", lambda value: value.isoformat()),
        ("pandas", "Period", str),
        ("pandas", "Interval", str),
        ("pandas", "DataFrame", named),
        ("pandas", "Series", named),
        ("pandas", "Index", named),
        ("polars", "DataFrame", named),
        ("polars", "Series", named),
        ("pyarrow", "Table", named),
        ("pyarrow", "RecordBatch", named),
        ("pyarrow", "Time64Scalar", _arrow_time),
        ("pyarrow", "Scalar", _arrow_scalar),
        ("numpy.ma.core", "MaskedConstant", lambda _: None),
        ("numpy", "bool_", bool),
        ("numpy", "datetime64", lambda value: None if value != value else str(value)),
        ("numpy", "timedelta64", _numpy_duration),
        ("numpy", "integer", lambda value: _integer(int(value))),
        ("numpy", "floating", lambda value: _number(float(value))),
        ("numpy", "complexfloating", lambda value: str(complex(value))),
        ("numpy", "void", _record),
    ]
    found = [(library_class(module, name), rule) for module, name, rule in rules]
    return [(known, rule) for known, rule in found if known is not None]


def _arrow_time(value: Any) -> Any:
    """Python's times have no nanoseconds, and Arrow's scalars drop them."""
    has_nanoseconds = value.is_valid and value.type.unit == "ns" and value.value % 1_000
    return value.cast("string").as_py() if has_nanoseconds else value.as_py()


def _arrow_scalar(value: Any) -> Any:
    found = value.as_py()
    return _number(found) if type(found) is float else found


def _record(value: Any) -> Any:
    names = value.dtype.names
    return {name: value[name] for name in names} if names else value.tobytes()


def _integer(value: int) -> Json:
    exact = int.__int__(value)
    return exact if exact.bit_length() <= _MAX_INT_BITS else hex(exact)


def _number(value: float) -> Json:
    exact = float.__float__(value)
    if math.isfinite(exact):
        return exact
    return None if math.isnan(exact) else "Infinity" if exact > 0 else "-Infinity"


def _duration(value: timedelta) -> str:
    microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return iso_duration(microseconds * 1_000 + int(getattr(value, "nanoseconds", 0)))


def _numpy_duration(value: Any) -> str | None:
    if value != value:  # NaT
        return None
    unit, count = sys.modules["numpy"].datetime_data(value.dtype)
    return iso_duration(int(value.astype("int64")) * count * UNIT_NS[unit])


def iso_duration(nanoseconds: int) -> str:
    seconds, nanoseconds_left = divmod(abs(nanoseconds), 1_000_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    fraction = f".{nanoseconds_left:09d}".rstrip("0") if nanoseconds_left else ""
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}P{days}DT{hours}H{minutes}M{seconds}{fraction}S"
