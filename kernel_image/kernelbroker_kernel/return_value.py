"""The report of a `result_var` that is not a table: the value itself, or a summary of it.

Plain values (numbers, texts, dicts and lists) are sent whole up to `MAX_JSON_BYTES`. A Series, an array
and a plain value that is larger are summarized with their first items; any other object with its type,
length, preview and a cut `repr`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from .introspection import Shapes, is_a, length, type_name
from .readers import DTYPE_CHARS, series_items
from .safe_repr import safe_repr, safe_text
from .values import CELL, Converter, Json, Limits, TooLarge, json_size

MAX_JSON_BYTES = 4 * 1024**2
"""Three times what 500 rows of 30 columns take, as records and as markdown."""
SUMMARY_ITEMS = 100
SUMMARY_BYTES = 256 * 1024
"""Of the first items of a list or dict that is summarized."""
REPR_CHARS = 1_000

EXACT = Limits(depth=32, items=MAX_JSON_BYTES, text=MAX_JSON_BYTES, total=4 * MAX_JSON_BYTES)
"""Of a value that is sent whole. A value that could never fit is given up early: an item counts as eight
characters, and takes at least two bytes of JSON."""

_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset)
_PLAIN = (type(None), bool, int, float, str, dict, *_SEQUENCES)
_PLAIN_OF_LIBRARIES = (
    ("numpy", "generic"),
    ("pandas._libs.tslibs.nattype", "NaTType"),
    ("pandas._libs.missing", "NAType"),
)
_TOO_LARGE = "too large or too deep for a value: summarized"


class Summary(dict[str, Json]):
    """The summary of a value of another language, made by its interpreter."""


def describe(value: object, preview_rows: int, max_bytes: int) -> tuple[Json, str | None]:
    """Return the value or its summary as JSON, and a note about cut parts."""
    if type(value) is Summary:
        return value, _TOO_LARGE
    items = max(preview_rows, SUMMARY_ITEMS)
    if is_a(value, "pandas", "Series") or is_a(value, "polars", "Series"):
        return _series(value, items, max_bytes)
    if is_a(value, "numpy", "ndarray"):
        return _array(value, items)
    if not issubclass(type(value), _PLAIN) and not any(
        is_a(value, *known) for known in _PLAIN_OF_LIBRARIES
    ):
        return _summary(value), None
    try:
        exact = Converter(EXACT, exact=True).convert(value)
    except TooLarge:
        return _summary(value), _TOO_LARGE
    if json_size(exact) <= min(max_bytes, MAX_JSON_BYTES):
        return exact, None
    return _summary(value), _TOO_LARGE


def _summary(value: object) -> dict[str, Json]:
    converter = Converter(CELL)
    shape = Shapes().shape(value)
    summary: dict[str, Json] = {
        "type": type_name(value),
        "length": shape[0] if shape else length(value),
        "preview": converter.convert(value) if converter.knows(value) else None,
        "repr": safe_repr(value, REPR_CHARS),
    }
    # The builtin class's own methods: a derived class may have put anything in their place.
    if issubclass(type(value), dict):
        mapping: Any = value
        summary["length"] = dict.__len__(mapping)
        keys = islice(dict.keys(mapping), SUMMARY_ITEMS)
        summary["keys"] = list(converter.convert(dict.fromkeys(keys)))
    elif base := next((base for base in _SEQUENCES if issubclass(type(value), base)), None):
        summary["length"] = base.__len__(value)
        summary["data"], _ = _first(islice(base.__iter__(value), SUMMARY_ITEMS), SUMMARY_BYTES)
    return summary


def _array(value: Any, items: int) -> tuple[dict[str, Json], str | None]:
    shape = Shapes().shape(value)
    # `flat` copies nothing; `ravel` may copy the whole array.
    preview, cut_values = _first(islice(value.flat, items), SUMMARY_BYTES)
    description = {
        "type": type_name(value),
        "dtype": str(value.dtype),
        "shape": shape,
        "length": shape[0] if shape else None,
        "preview": preview,
        "repr": safe_repr(value, REPR_CHARS),
    }
    return description, f"{cut_values} values cut" if cut_values else None


def _series(series: Any, items: int, max_bytes: int) -> tuple[dict[str, Json], str | None]:
    head = series.head(items)
    data, cut_values = _first(series_items(head), max_bytes)
    description = {
        "type": type_name(series),
        "name": Converter(CELL).convert(series.name),
        "dtype": safe_text(series.dtype, DTYPE_CHARS),
        "length": len(series),
        "data": data,
    }
    notes = [f"{len(data)} of {len(head)} values"] if len(data) < len(head) else []
    notes += [f"{cut_values} values cut"] if cut_values else []
    return description, "; ".join(notes) or None


def _first(items: Iterable[Any], budget: int) -> tuple[list[Json], int]:
    """As many items from the beginning as fit into so many bytes, and the number of those that were cut."""
    converter = Converter(CELL)
    found: list[Json] = []
    cut_values = 0
    for item in items:
        converted = converter.convert(item)
        budget -= json_size(converted) + 1
        if budget < 0:
            break
        found.append(converted)
        cut_values = converter.cut_values
    return found, cut_values
