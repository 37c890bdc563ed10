"""What is said of code before it runs: findings, each with a level, and the assessment they add up to.

A finding names what was found and where, never the code itself, so that it may be logged.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

Language: TypeAlias = Literal["python", "javascript", "shell"]
Level: TypeAlias = Literal["safe", "low", "medium", "high", "critical"]
PolicyMode: TypeAlias = Literal["off", "warn", "confirm", "block"]
"""What a broker does with risky code: nothing, tell, ask first, or refuse."""
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the mildest to the worst."""


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """One thing that the code does or may do.

    Attributes:
        rule: what kind of thing, such as `process` or `network`.
        line, column: where, both from 1.
        reason: one line for a person, such as "os.system runs a shell command".
    """

    rule: str
    level: Level
    line: int
    column: int
    reason: str


class Assessment(msgspec.Struct, kw_only=True, frozen=True):
    """All findings, by place, and the level of the worst of them; `safe` where there are none."""

    language: Language
    level: Level
    findings: list[Finding] = []


def at_least(level: Level, threshold: Level) -> bool:
    """Whether a level is as bad as another, or worse."""
    return LEVELS.index(level) >= LEVELS.index(threshold)
