"""`assess`: from code to an assessment. Code within code is analyzed here, too."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.findings import Assessment, Language
from . import javascript, python, shell
from .collector import Collector, LimitExceeded
from .syntax_trees import ParserMissing

MAX_CODE_CHARS = 200_000
_MAX_DEPTH = 5  # of code within code, such as `sh -c 'python -c "..."'`

_ANALYZERS: dict[Language, Callable[[str, Collector], None]] = {
    "python": python.analyze,
    "shell": shell.analyze,
    "javascript": javascript.analyze,
}


def assess(code: str, language: Language = "python") -> Assessment:
    """Assess what code would do if it ran. Python is read as IPython reads a cell.

    The work is bounded; code that exceeds the bounds has a finding of the rule `size`.

    Raises:
        ParserMissing: the language is shell or JavaScript and tree-sitter is not installed.
        ValueError: the language is unknown.
    """
    if language not in _ANALYZERS:
        raise ValueError(f"language is one of {', '.join(_ANALYZERS)}, not {language!r}")
    collector = Collector(_analyze)
    _analyze(code, language, collector)
    return collector.assessment(language)


def _analyze(code: str, language: Language, collector: Collector) -> None:
    collector.depth += 1
    try:
        if collector.depth > _MAX_DEPTH or len(code) > MAX_CODE_CHARS:
            raise LimitExceeded
        _ANALYZERS[language](code, collector)
    except ParserMissing as exc:
        if collector.depth == 1:
            raise
        collector.add("parser", "high", str(exc))
    except (LimitExceeded, RecursionError, MemoryError):
        collector.add("size", "medium", "too long or too complex to be assessed completely")
    finally:
        collector.depth -= 1
