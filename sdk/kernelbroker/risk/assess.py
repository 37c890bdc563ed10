"""`assess`: from code to an assessment. Code within code is analyzed here, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from ..protocol.findings import Assessment, Finding, Language, RuleSet
from . import browser, javascript, patterns, python, shell
from .collector import Collector, LimitExceeded
from .syntax_trees import ParserMissing

MAX_CODE_CHARS = 200_000
_MAX_DEPTH = 5  # of code within code, such as `sh -c 'python -c "..."'`

_ANALYZERS: dict[Language, Callable[[str, Collector], None]] = {
    "python": python.analyze,
    "shell": shell.analyze,
    "javascript": javascript.analyze,
}


def assess(
    code: str,
    language: str = "python",
    params: Mapping[str, Any] | None = None,
    *,
    rules: RuleSet = "agent",
    dangerous_patterns: Sequence[str] = (),
) -> Assessment:
    """Assess what code would do if it ran. Python is read as IPython reads a cell.

    The work is bounded; code that exceeds the bounds has a finding of the rule `size`.

    Args:
        code: the code, or the action of a browser.
        language: `python`, `javascript`, `shell` or `browser`. An unknown one is `high`.
        params: the parameters of a browser's action.
        rules: the rule set for code.
        dangerous_patterns: further regular expressions, which ignore case and are critical.

    Raises:
        ParserMissing: the language is shell or JavaScript and tree-sitter is not installed.
        ValueError: a regular expression, or the name of the rule set, is invalid.
    """
    if rules not in get_args(RuleSet):
        raise ValueError(f"rules is one of {', '.join(get_args(RuleSet))}, not {rules!r}")
    collector = Collector(_analyze)
    for finding in _patterns_of(code, language, params or {}, rules):
        collector.add_finding(finding)
    operators = patterns.matches(
        code[:MAX_CODE_CHARS], patterns.dangerous(tuple(dangerous_patterns)), "operator"
    )
    for finding in operators:
        collector.add_finding(finding)
    if language in _ANALYZERS and rules == "agent":
        _analyze(code, language, collector)
    if language == "browser":
        collector.raise_to("low")
    return collector.assessment(language)


def _patterns_of(
    code: str, language: str, params: Mapping[str, Any], rules: RuleSet
) -> Iterator[Finding]:
    if language == "browser":
        yield from browser.find(code, params)
    elif language not in _ANALYZERS:
        reason = f"{language[:60]!r} is not a known content type"
        yield Finding(rule="content_type", level="high", line=1, column=1, reason=reason)
    elif rules == "strict":
        yield from patterns.find(code[:MAX_CODE_CHARS], language)
        if len(code) > MAX_CODE_CHARS:
            reason = "too long to be assessed completely"
            yield Finding(rule="size", level="high", line=1, column=1, reason=reason)


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
