"""The assessment of code before it runs: findings, each with a level.

A finding has a rule, a position and a reason, but never the code itself, so that it may be logged.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

Language: TypeAlias = Literal["python", "javascript", "shell"]
Level: TypeAlias = Literal["safe", "low", "medium", "high", "critical"]
PolicyMode: TypeAlias = Literal["off", "warn", "confirm", "block"]
"""The treatment of risky code: run it, report it, ask for a confirmation, or refuse it."""
RuleSet: TypeAlias = Literal["agent", "strict"]
"""`agent` has few false alarms; `strict` reports every pattern of its lists."""
SandboxKind: TypeAlias = Literal["subprocess", "docker_simple", "aio_sandbox"]
"""Where code should run: a jail, a container, or a container with a browser."""
SuggestedSandbox: TypeAlias = Literal["subprocess", "docker_simple", "aio_sandbox", "REJECT"]
"""`REJECT` is code that should not run at all."""
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the least to the most severe."""


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """One thing that the code does or may do.

    Attributes:
        rule: the kind of finding, such as `process` or `network`.
        line, column: its position, both from 1.
        reason: one line for a person, such as "os.system runs a shell command".
    """

    rule: str
    level: Level
    line: int
    column: int
    reason: str


class Assessment(msgspec.Struct, kw_only=True, frozen=True):
    """All findings, by position, and what follows from the level of the worst one.

    Attributes:
        language: `python`, `javascript`, `shell`, `browser`, or an unknown one, which is `high`.
        reason: one line about the level.
        requires_confirmation: a person should be asked before it runs.
        requires_isolation: it should run in a container.
        suggested_sandbox: where it should run, or `REJECT`.
        detected_patterns: the findings as text, such as "[CRITICAL] os.system( (line 3)".
    """

    language: str
    level: Level
    reason: str = ""
    requires_confirmation: bool = False
    requires_isolation: bool = False
    suggested_sandbox: SuggestedSandbox = "subprocess"
    detected_patterns: list[str] = []
    findings: list[Finding] = []


def at_least(level: Level, threshold: Level) -> bool:
    """Return whether a level is as bad as another, or worse."""
    return LEVELS.index(level) >= LEVELS.index(threshold)
