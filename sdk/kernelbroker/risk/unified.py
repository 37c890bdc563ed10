"""`UnifiedRiskPolicy`: one object with the rules of a deployment, for all kinds of content."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from ..protocol.findings import Assessment, Level, RuleSet
from . import patterns
from .assess import assess


class RiskLevel(enum.StrEnum):
    """The level of a tool's call, for frameworks of agents. Code that is safe has LOW as well."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    CRITICAL = "CRITICAL"


_LEVELS: Mapping[Level, RiskLevel] = {
    "safe": RiskLevel.LOW,
    "low": RiskLevel.LOW,
    "medium": RiskLevel.MEDIUM,
    "high": RiskLevel.HIGH,
    "critical": RiskLevel.CRITICAL,
}


class UnifiedRiskPolicy:
    """Assesses content without a broker.

    Args:
        rules: the rule set.
        dangerous_patterns: further regular expressions, which ignore case and are critical.

    Raises:
        ValueError: a regular expression is invalid.
    """

    def __init__(self, rules: RuleSet = "agent", dangerous_patterns: Sequence[str] = ()) -> None:
        self.rules = rules
        self.dangerous_patterns = tuple(dangerous_patterns)
        patterns.dangerous(self.dangerous_patterns)

    def assess(
        self,
        content: str,
        content_type: str = "python",
        params: Mapping[str, Any] | None = None,
    ) -> Assessment:
        """Assess content.

        Args:
            content: code; the action, for a browser.
            content_type: `python`, `javascript`, `shell` or `browser`. An unknown one is `high`.
            params: the parameters of a browser's action.

        Raises:
            ParserMissing: the extra `risk` is needed for this language and not installed.
        """
        return assess(
            content,
            content_type,
            params,
            rules=self.rules,
            dangerous_patterns=self.dangerous_patterns,
        )

    def get_risk_level(
        self,
        content: str,
        content_type: str = "python",
        params: Mapping[str, Any] | None = None,
    ) -> RiskLevel:
        """Return the level for a framework of agents. Arguments as of `assess`."""
        return _LEVELS[self.assess(content, content_type, params).level]

    def requires_confirmation_for(
        self,
        content: str,
        content_type: str = "python",
        params: Mapping[str, Any] | None = None,
    ) -> bool:
        """Whether a person should be asked before this runs. Arguments as of `assess`."""
        return self.assess(content, content_type, params).requires_confirmation
