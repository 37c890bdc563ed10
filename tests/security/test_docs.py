"""The counts of attempts in the security document are correct."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from .attempts import all_attempts
from .attempts.deadly import all_deadly

DOCUMENT = Path(__file__).parents[2] / "docs/security.md"


def test_the_document_has_the_counts() -> None:
    """The document has each group of attempts with its number, and no others."""
    counted = Counter(attempt.group for attempt in [*all_attempts(), *all_deadly()])
    rows = re.findall(r"^\| ([^|]+?) \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {group: int(number) for group, number in rows} == counted
    assert f"{counted.total()} attempts" in DOCUMENT.read_text()


def test_attempt_names_are_unique() -> None:
    """No two attempts of a group have the same name."""
    names = Counter((attempt.group, attempt.name) for attempt in [*all_attempts(), *all_deadly()])
    assert [name for name, count in names.items() if count > 1] == []
