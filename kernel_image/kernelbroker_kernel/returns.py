"""What `result_var` holds where it is not a table: the value itself, or a summary of it.

Numbers, texts, dicts and lists go as they are while they are small enough to be worth it. A Series and
an array tell their first items, all else its type, length, preview and a cut `repr`.
"""

from __future__ import annotations

from typing import Any

from .objects import Shapes, is_a, length, type_name
from .readers import DTYPE_CHARS, series_items
from .texts import safe_repr, safe_text
from .values import CELL, Converter, Json, Limits, TooLarge, json_size

MAX_TEXT_CHARS = 100_000
MAX_JSON_BYTES = 256 * 1024
REPR_CHARS = 1_000

EXACT = Limits(depth=20, items=MAX_JSON_BYTES, text=MAX_TEXT_CHARS, total=8 * MAX_JSON_BYTES)
"""Of a value that goes as it is: what could never fit is given up early, the JSON's size decides."""

_AS_THEY_ARE = (type(None), bool, int, float, str, dict, list, tuple, set, frozenset)
_AS_THEY_ARE_TOO = (
    ("numpy", "generic"),
    ("pandas._libs.tslibs.nattype", "NaTType"),
    ("pandas._libs.missing", "NAType"),
)


_CUT = "too large or too deep for a value: summarized"


class Summary(dict[str, Json]):
    """What stands for a value of another language's that is too large to come here."""


def describe(value: object, preview_rows: int, max_bytes: int) -> tuple[Json, str | None]:
    """The value as JSON, and what was cut where something was."""
    if type(value) is Summary:
        return value, _CUT
    if is_a(value, "pandas", "Series") or is_a(value, "polars", "Series"):
        return _series(value, preview_rows, max_bytes)
    if is_a(value, "numpy", "ndarray"):
        return _array(value, preview_rows), None
    if issubclass(type(value), _AS_THEY_ARE) or any(
        is_a(value, *known) for known in _AS_THEY_ARE_TOO
    ):
        try:
            exact = Converter(EXACT, exact=True).convert(value)
        except TooLarge:
            return _summary(value), _CUT
        if type(exact) is str or json_size(exact) <= MAX_JSON_BYTES:
            return exact, None
        return _summary(value), _CUT
    return _summary(value), None


def _summary(value: object) -> dict[str, Json]:
    converter = Converter(CELL)
    shape = Shapes().shape(value)
    return {
        "type": type_name(value),
        "length": shape[0] if shape else length(value),
        "preview": converter.convert(value) if converter.knows(value) else None,
        "repr": safe_repr(value, REPR_CHARS),
    }


def _array(value: Any, preview_items: int) -> dict[str, Json]:
    shape = Shapes().shape(value)
    converter = Converter(CELL)
    return {
        "type": type_name(value),
        "dtype": str(value.dtype),
        "shape": shape,
        "length": shape[0] if shape else None,
        # `flat` copies what is sliced from it, where `ravel` may copy everything.
        "preview": [converter.convert(item) for item in value.flat[:preview_items]],
        "repr": safe_repr(value, REPR_CHARS),
    }


def _series(series: Any, preview_rows: int, max_bytes: int) -> tuple[dict[str, Json], str | None]:
    head = series.head(preview_rows)
    converter = Converter(CELL)
    data: list[Json] = []
    budget = max_bytes
    for item in series_items(head):
        converted = converter.convert(item)
        budget -= json_size(converted) + 1
        if budget < 0:
            break
        data.append(converted)
    description = {
        "type": type_name(series),
        "name": converter.convert(series.name),
        "dtype": safe_text(series.dtype, DTYPE_CHARS),
        "length": len(series),
        "data": data,
    }
    cut = len(data) < len(head)
    return description, f"{len(data)} of {len(head)} values" if cut else None
