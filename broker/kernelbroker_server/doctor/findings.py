"""What the checks find, and how it is shown. No I/O."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


class Level(enum.StrEnum):
    """How bad a finding is, mildest first."""

    OK = "ok"
    """The check has found no fault."""
    WARNING = "warning"
    """The broker works, but worse than it could, or not for long."""
    ERROR = "error"
    """The broker does not start, or cannot be relied on."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        check: the name of the check.
        message: what was found; one sentence.
        remedy: what to do about it; empty for `Level.OK`.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, message, remedy)


def error(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, Level.ERROR, message, remedy)


def from_error(check: str, exc: Exception, remedy: str) -> Finding:
    """A finding from an error of ours, whose message says what is wrong and then what to do.

    Args:
        remedy: if the message has none.
    """
    text = " ".join(str(exc).split()).rstrip(".")
    message, _, advice = text.partition(". ")
    return error(check, message, advice or remedy)


def worst(findings: Sequence[Finding]) -> Level:
    """The level of the worst finding."""
    order = list(Level)
    return max((each.level for each in findings), key=order.index, default=Level.OK)


def as_text(findings: Sequence[Finding]) -> str:
    """The findings as lines for people."""
    width = max(len(each.check) for each in findings)
    lines = []
    for each in findings:
        lines.append(f"{each.level:7}  {each.check:{width}}  {each.message}")
        if each.remedy:
            lines.append(f"{'':7}  {'':{width}}  -> {each.remedy}")
    counts = {level: sum(each.level is level for each in findings) for level in Level}
    faults = f"{_count(counts[Level.ERROR], 'error')}, {_count(counts[Level.WARNING], 'warning')}"
    nothing = counts[Level.OK] == len(findings)
    lines.append("\nNothing is wrong." if nothing else f"\n{faults}.")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding], version: str) -> str:
    """The findings as one JSON object."""
    report = {
        "status": worst(findings),
        "version": version,
        "findings": [asdict(each) for each in findings],
    }
    return json.dumps(report, indent=2)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
