"""Collects the findings of one assessment and counts its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ..protocol.findings import LEVELS, Assessment, Finding, Language, Level
from .report import report

Location: TypeAlias = tuple[int, int]
"""Line and column, from 1."""
MAX_FINDINGS = 50
_MAX_COLLECTED = 1000
_MAX_STEPS = 400_000
"""Nodes visited, values made and characters read (100 a step), over all nested code."""

_STEPS_PER_S = 300_000


class Rule(NamedTuple):
    """The meaning of a name, a command or a path. In a finding the reason follows the name."""

    rule: str
    level: Level
    reason: str


def rules(rule: str, level: Level, reason: str, names: str) -> dict[str, Rule]:
    """A table entry for each of the names."""
    return dict.fromkeys(names.split(), Rule(rule, level, reason))


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


class LimitExceeded(Exception):
    """The assessment has used up its steps."""


class Collector:
    """Findings and steps of one assessment, and the depth of code within code."""

    def __init__(self, analyze: Callable[[str, Language, Collector], None]) -> None:
        self._analyze = analyze
        self.depth = 0
        self._steps = 0
        self._location: tuple[int, int] | None = None
        self._line_offset = 0
        self._findings: set[Finding] = set()
        self._worst = 0

    def step(self, count: int = 1) -> None:
        """Count work. Raises LimitExceeded."""
        self._steps += count
        if self._steps > _MAX_STEPS:
            raise LimitExceeded

    def step_time(self, start: float) -> None:
        """Count the thread's time since `start` as steps. Raises LimitExceeded."""
        self.step(int((time.thread_time() - start) * _STEPS_PER_S))

    def add(self, rule: str, level: Level, reason: str, line: int = 1, column: int = 1) -> None:
        """Add a finding."""
        line, column = self._location or (line + self._line_offset, column)
        self.add_finding(Finding(rule=rule, level=level, line=line, column=column, reason=reason))

    def add_finding(self, found: Finding) -> None:
        """Add a finding as it is."""
        rank = LEVELS.index(found.level)
        if len(self._findings) < _MAX_COLLECTED or rank > self._worst:
            self._worst = max(self._worst, rank)
            self._findings.add(found)

    def raise_to(self, level: Level) -> None:
        """Make the level of the assessment at least this one, without a finding."""
        self._worst = max(self._worst, LEVELS.index(level))

    def add_rule(self, rule: Rule, name: str, at: Location) -> None:
        """Add the finding of a rule for a name."""
        self.add(rule.rule, rule.level, f"{name} {rule.reason}".strip(), *at)

    def analyze_nested(
        self, code: str, language: Language, at: Location, *, lines: bool = False
    ) -> None:
        """Analyze code within code, whose findings are located where it begins, or by its `lines`."""
        self.step(5 + len(code) // 100)
        before = self._location, self._line_offset
        if lines:
            self._line_offset += at[0] - 1
        else:
            self._location = self._location or (at[0] + self._line_offset, at[1])
        try:
            self._analyze(code, language, self)
        finally:
            self._location, self._line_offset = before

    def assessment(self, language: str) -> Assessment:
        kept = sorted(self._findings, key=lambda each: -LEVELS.index(each.level))[:MAX_FINDINGS]
        kept.sort(key=lambda each: (each.line, each.column, each.reason))
        return report(language, LEVELS[self._worst], kept)
