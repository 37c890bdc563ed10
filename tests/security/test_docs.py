"""The document on security counts what is attempted, and counts right."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from .attempts import all_attempts
from .attempts.deadly import all_deadly

DOCUMENT = Path(__file__).parents[2] / "docs/security.md"


def test_counts() -> None:
    """Each group of attempts stands in the document with its number, and no other does."""
    counted = Counter(attempt.group for attempt in [*all_attempts(), *all_deadly()])
    rows = re.findall(r"^\| ([^|]+?) \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {group: int(number) for group, number in rows} == counted
    assert f"{counted.total()} attempts" in DOCUMENT.read_text()


def test_names() -> None:
    """No two attempts of a group have the same name."""
    names = Counter((attempt.group, attempt.name) for attempt in [*all_attempts(), *all_deadly()])
    assert [name for name, count in names.items() if count > 1] == []
