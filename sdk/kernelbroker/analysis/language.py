"""The language of an answer, and the size of a table in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]
Choice: TypeAlias = Literal["auto", "en", "zh"]

_CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


def chosen(choice: Choice, texts: Iterable[str | None]) -> Language:
    """Return the chosen language; with `auto`, Chinese if one of the texts has a Chinese character."""
    if choice != "auto":
        return choice
    return "zh" if any(text and _CHINESE.search(text) for text in texts) else "en"


def shape(rows: int, columns: int, language: Language) -> str:
    """Return `8 rows × 5 columns`, or `8 行 × 5 列`."""
    if language == "zh":
        return f"{rows} 行 × {columns} 列"
    return f"{rows} {'row' if rows == 1 else 'rows'} × {columns} {'column' if columns == 1 else 'columns'}"
