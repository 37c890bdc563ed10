"""The usual analyses, by name. Their code is in `usual_analyses.py`, which runs in the sandbox."""

from __future__ import annotations

from .cells import source_of
from .language import Language

KINDS = (
    "descriptive",
    "missing",
    "correlation",
    "group",
    "trend",
    "outliers",
    "distribution",
)
_OTHER_NAMES = {
    "describe": "descriptive",
    "description": "descriptive",
    "描述": "descriptive",
    "描述性统计": "descriptive",
    "缺失": "missing",
    "缺失值": "missing",
    "相关": "correlation",
    "相关性": "correlation",
    "分组": "group",
    "趋势": "trend",
    "异常": "outliers",
    "异常值": "outliers",
    "分布": "distribution",
}


def kind_of(analysis_type: str) -> str | None:
    """Return the usual analysis of that name, or None."""
    name = analysis_type.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in KINDS else None


def code(kind: str, language: Language) -> str:
    """Return code that defines `analyze(df)`."""
    source = source_of("usual_analyses.py")
    return f"{source}\n\ndef analyze(df):\n    return _kb_usual[{kind!r}](df, {language!r})\n"
