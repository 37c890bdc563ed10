"""What follows from a level: whether to ask a person, whether to isolate, and which sandbox to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..protocol.findings import Assessment, Finding, Level, SuggestedSandbox


class Advice(NamedTuple):
    """The advice for one level of one kind of code."""

    confirm: bool
    isolate: bool
    sandbox: SuggestedSandbox


_SAFE = Advice(confirm=False, isolate=False, sandbox="subprocess")
_ISOLATED = Advice(confirm=False, isolate=True, sandbox="docker_simple")
_ASKED = Advice(confirm=True, isolate=True, sandbox="docker_simple")
_CODE: Mapping[Level, Advice] = {
    "safe": _SAFE,
    "low": _ISOLATED,
    "medium": _ISOLATED,
    "high": _ASKED,
    "critical": _ASKED,
}
_BROWSER = Advice(confirm=False, isolate=False, sandbox="aio_sandbox")
_BROWSER_ASKED = Advice(confirm=True, isolate=False, sandbox="aio_sandbox")

ADVICE: Mapping[str, Mapping[Level, Advice]] = {
    "python": _CODE,
    "javascript": _CODE,
    "shell": {**_CODE, "critical": Advice(confirm=True, isolate=True, sandbox="REJECT")},
    "browser": {
        "safe": _BROWSER,
        "low": _BROWSER,
        "medium": _BROWSER,
        "high": _BROWSER_ASKED,
        "critical": _BROWSER_ASKED,
    },
}
"""By content type."""


def report(content_type: str, level: Level, findings: Sequence[Finding]) -> Assessment:
    """Return the assessment of these findings. An unknown content type is treated as code."""
    advice = ADVICE.get(content_type, _CODE)[level]
    worst = [each for each in findings if each.level == level]
    reason = f"nothing risky was found in this {content_type}" if level == "safe" else level
    if worst:
        more = f", and {len(worst) - 1} more" if len(worst) > 1 else ""
        reason = f"{level}: {_located(worst[0])}{more}"
    return Assessment(
        language=content_type,
        level=level,
        reason=reason,
        requires_confirmation=advice.confirm,
        requires_isolation=advice.isolate,
        suggested_sandbox=advice.sandbox,
        detected_patterns=[f"[{each.level.upper()}] {_located(each)}" for each in findings],
        findings=list(findings),
    )


def _located(finding: Finding) -> str:
    return f"{finding.reason} (line {finding.line})"
