"""`assess`: code of a language in, an assessment out. Here the languages meet that contain each other."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.findings import Assessment, Language
from . import javascript, python, shell
from .report import Report, TooMuch

_JUDGES: dict[Language, Callable[[str, Report], None]] = {
    "python": python.judge,
    "shell": shell.judge,
    "javascript": javascript.judge,
}
_MAX_DEPTH = 6
"""Code in code in code: `sh -c 'python -c "..."'`."""


def assess(code: str, language: Language = "python") -> Assessment:
    """Judge code by what it would do if it ran.

    Python is judged as IPython takes it, with `!commands` and `%magics`.

    Raises:
        ParserMissing: shell or JavaScript, and tree-sitter is not installed.
        ValueError: no such language.
    """
    if language not in _JUDGES:
        raise ValueError(f"language is one of {', '.join(_JUDGES)}, not {language!r}")
    report = Report(_nested)
    _run(code, language, report)
    return report.assessment(language)


def _nested(code: str, language: Language, report: Report) -> None:
    """Code found in code. Its findings stand where the outer code has it."""
    if report.depth >= _MAX_DEPTH:
        report.add("depth", "medium", "code within code within code is not judged any further")
        return
    report.depth += 1
    try:
        _run(code, language, report)
    finally:
        report.depth -= 1


def _run(code: str, language: Language, report: Report) -> None:
    try:
        _JUDGES[language](code, report)
    except TooMuch:
        report.add("depth", "medium", "could not be judged to its end: it is too large")
    except (RecursionError, MemoryError):
        report.add("depth", "medium", "could not be judged: it is nested too deep")
