"""The sections about risky code: how it is assessed, and where it runs."""

from __future__ import annotations

from kernelbroker.protocol.findings import RuleSet
from kernelbroker.risk import UnifiedRiskPolicy
from pydantic import field_validator

from .config_sections import _Section


class RiskSettings(_Section):
    """The assessment of code. See docs/risk.md."""

    rules: RuleSet = "agent"
    """`agent` has few false alarms; `strict` reports each pattern of its lists."""
    dangerous_patterns: tuple[str, ...] = ()
    """Regular expressions, which ignore case. Code that one of them matches is critical."""

    @field_validator("dangerous_patterns")
    @classmethod
    def _are_regular_expressions(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        UnifiedRiskPolicy(dangerous_patterns=patterns)  # raises ValueError
        return patterns
