"""Where findings are gathered while code is judged, and how much work that may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..protocol.findings import LEVELS, Assessment, Finding, Language, Level

MAX_FINDINGS = 50
_MAX_GATHERED = 1000
_BUDGET = 400_000
"""Steps, and so memory; a cell of 100,000 characters needs some 150,000."""
_CPU_S = 0.8
"""Of this thread; looked at every `_LOOK` steps."""
_LOOK = 16
_MADE = 250
"""Characters, or items of lists, that count as a step more."""


class TooMuch(Exception):
    """The budget is spent."""


Nested = Callable[[str, Language, "Report"], None]


class Report:
    """The findings of one assessment.

    Attributes:
        nested: judges code of any language that was found within code.
        depth: how deep in code within code we are.
    """

    def __init__(self, nested: Nested) -> None:
        self._nested = nested
        self.depth = 0
        self._place: tuple[int, int] | None = None
        self._found: dict[tuple[str, int, str], Finding] = {}
        self._worst: Level = "safe"
        self._budget = _BUDGET
        self._ends_at = time.thread_time() + _CPU_S

    def spend(self, made: int = 0) -> None:
        """Take a step, in which so many characters or items were made. Raises TooMuch."""
        before = self._budget // _LOOK
        self._budget -= 1 + made // _MADE
        looks = self._budget // _LOOK != before
        if self._budget < 0 or (looks and time.thread_time() > self._ends_at):
            self._budget = 0
            raise TooMuch

    def add(self, rule: str, level: Level, reason: str, line: int = 1, column: int = 1) -> None:
        """Note a finding; of what is noted twice in one line the worse counts."""
        line, column = self._place or (line, column)
        key = (rule, line, reason)
        known = self._found.get(key)
        worse_than_known = known is None or _rank(level) > _rank(known.level)
        if worse_than_known and (len(self._found) < _MAX_GATHERED or _rank(level) > self._rank):
            self._found[key] = Finding(
                rule=rule, level=level, line=line, column=column, reason=reason
            )
        if _rank(level) > self._rank:
            self._worst = level

    def judge_nested(self, code: str, language: Language, line: int, column: int) -> Level:
        """Judge code found in code, as standing at this place; gives the worst level in it."""
        before, self._worst = self._worst, "safe"
        with self.at(line, column):
            self._nested(code, language, self)
        inner, self._worst = self._worst, max(before, self._worst, key=_rank)
        return inner

    def judge_part(self, code: str, language: Language, line: int) -> None:
        """Judge code of another language that begins on this line of the code."""
        self._nested("\n" * (line - 1) + code, language, self)

    @contextmanager
    def at(self, line: int, column: int) -> Iterator[None]:
        """Whatever is found meanwhile stands at this place."""
        before = self._place
        self._place = before or (line, column)
        try:
            yield
        finally:
            self._place = before

    def assessment(self, language: Language) -> Assessment:
        worst_first = sorted(self._found.values(), key=lambda found: -_rank(found.level))
        kept = sorted(worst_first[:MAX_FINDINGS], key=lambda found: (found.line, found.column))
        level = worse("safe", *(found.level for found in kept))
        return Assessment(language=language, level=level, findings=kept)

    @property
    def _rank(self) -> int:
        return _rank(self._worst)


def _rank(level: Level) -> int:
    return LEVELS.index(level)


def worse(*levels: Level) -> Level:
    return max(levels, key=_rank)
