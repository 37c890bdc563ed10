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


class RoutingSettings(_Section):
    """Where cells run in sessions whose template is `auto`. See docs/templates.md.

    The keys are what an assessment suggests; each is the name of a template. If one is not set, the
    strongest sandboxes of this broker are taken.
    """

    subprocess: str | None = None
    """For safe code. By default a template with jails, else one with containers."""
    docker_simple: str | None = None
    """For code that must be isolated. By default a template on gVisor, else one with containers, else one
    with jails and the profile `strict`, which the broker adds if there is none."""
    aio_sandbox: str | None = None
    """For browsers. By default a template with `browser = true`, else as `docker_simple`."""
    require: bool = False
    """Refuse code rather than run it in a weaker kind of sandbox."""
