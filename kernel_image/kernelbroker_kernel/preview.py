"""A table as the protocol's DataFrame: its facts, and a preview of bounded size.

No library is used here: `readers` reads the facts and the first rows of a library's table, and `render`
makes JSON of them. What exceeds the bound is cut: columns if a single row is too large, otherwise rows.

The markdown is a GitHub table of the preview, with the same values: null for missing ones, nested values
as JSON, each cell cut to 80 characters. Pipes, backslashes and line breaks are escaped. Row labels come
first, unless they are the default numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .safe_repr import cut, safe_text
from .values import CELL, Converter, Json, Limits, json_size, unique

LABEL = Limits(depth=3, items=20, text=1_000, total=2_000)
KEY_CHARS = 200
MARKDOWN_CELL_CHARS = 80

_MARKDOWN_ESCAPES = str.maketrans({"\\": "\\\\", "|": "\\|", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class Index:
    """The row labels: names and dtypes by level, and the labels of the head as one list for each level."""

    names: list[Any]
    dtypes: list[str]
    levels: list[list[Any]]
    is_default: bool


@dataclass(frozen=True, slots=True)
class Table:
    """The reported facts of a library's table. The values are still Python objects.

    Attributes:
        shape: rows and columns of the whole table.
        labels: of the listed columns, in order; with `levels_joined`, tuples to be joined.
        dtypes: of the listed columns.
        columns: the head of each previewed column. These are the first of the listed columns.
        head: the number of rows in the head.
        memory_usage: bytes.
    """

    kind: str
    shape: tuple[int, int]
    labels: list[Any]
    dtypes: list[str]
    columns: list[list[Any]]
    head: int
    memory_usage: int
    index: Index | None = None
    levels_joined: bool = False


def render(table: Table, var_name: str, max_bytes: int) -> tuple[dict[str, Json], str | None]:
    """The DataFrame's fields, of at most about `max_bytes` as JSON, and a note of what was cut."""
    facts, cut_labels = _facts(table, var_name, len(table.labels))
    while json_size(facts) > max_bytes // 2 and facts["columns"]:
        facts, cut_labels = _facts(table, var_name, len(facts["columns"]) // 2)
    budget = max_bytes - json_size(facts)
    previewed = min(len(table.columns), len(facts["columns"]))
    rows, cut_values = _add_preview(facts, table, previewed, budget)
    while table.head and not rows and previewed:
        previewed //= 2
        rows, cut_values = _add_preview(facts, table, previewed, budget)

    width = table.shape[1]
    cut_texts = [(cut_labels, "labels"), (cut_values, "values in the preview")]
    cuts = [
        (len(facts["columns"]), width, "columns listed"),
        (previewed, width, "columns in the preview"),
        (rows, table.head, "rows in the preview"),
    ]
    notes = [f"{kept} of {all_} {what}" for kept, all_, what in cuts if kept < all_]
    notes += [f"{count} {what} cut" for count, what in cut_texts if count]
    return facts, "; ".join(notes) or None


def _facts(table: Table, var_name: str, listed: int) -> tuple[dict[str, Json], int]:
    """All fields but the preview, for the first `listed` columns, and the number of cut labels."""
    labels = table.labels[:listed]
    keys = unique(_key(label, table.levels_joined) for label in labels)
    as_keys = all(
        type(label) is str and label == key for label, key in zip(labels, keys, strict=True)
    )
    converter = Converter(LABEL)
    index = table.index
    facts = {
        "var_name": var_name,
        "kind": table.kind,
        "shape": list(table.shape),
        "columns": keys,
        "labels": None if as_keys else [converter.convert(label) for label in labels],
        "dtypes": dict(zip(keys, table.dtypes, strict=False)),
        "index": index
        and {"names": [converter.convert(name) for name in index.names], "dtypes": index.dtypes},
        "memory_usage": table.memory_usage,
    }
    return facts, converter.cut_values


def _add_preview(facts: dict[str, Json], table: Table, width: int, budget: int) -> tuple[int, int]:
    """Add as many rows of `width` columns to `facts` as the budget allows.

    Returns the number of rows, and of values in them that were cut.
    """
    keys = facts["columns"][:width]
    levels = table.index.levels if table.index else []
    shown = levels if table.index and not table.index.is_default else []
    names = [_key(name, False) if name is not None else "" for name in _names(table)][: len(shown)]
    header = [*names, *keys]
    lines = [_line(header), _line(["---"] * len(header))] if header else []
    converter = Converter(CELL)
    records, index_values = [], []
    cut_values = 0
    for row in range(table.head):
        label = [converter.convert(level[row]) for level in levels]
        values = [converter.convert(column[row]) for column in table.columns[:width]]
        record = dict(zip(keys, values, strict=True))
        line = _line(label[: len(shown)] + values) if header else ""
        budget -= json_size([record, label, line])
        if budget < 0:
            break
        records.append(record)
        cut_values = converter.cut_values
        index_values.append(label if len(levels) > 1 else label[0] if label else None)
        lines.append(line)
    facts["preview"] = records
    facts["markdown"] = "\n".join(lines) if header else ""
    if facts["index"]:
        facts["index"]["values"] = index_values
    return len(records), cut_values


def _names(table: Table) -> list[Any]:
    return table.index.names if table.index else []


def _key(label: Any, levels_joined: bool) -> str:
    if levels_joined:
        # pandas fills up with empty texts if the levels differ in depth.
        parts = [safe_text(part, KEY_CHARS) for part in label]
        return cut(" / ".join(part for part in parts if part), KEY_CHARS)
    return safe_text(label, KEY_CHARS)


def _line(cells: list[Json]) -> str:
    return f"| {' | '.join(map(_markdown_cell, cells))} |"


def _markdown_cell(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(text, MARKDOWN_CELL_CHARS).translate(_MARKDOWN_ESCAPES)
