"""Tenants own sessions, files and executions, and have limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelbroker.protocol.findings import Level, PolicyMode


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of one tenant. None means that only the limits of the broker apply.

    Attributes:
        sessions: how many may be open.
        concurrent: executions that run at the same time, over all its sessions.
        rate: executions that it may submit in a minute.
        templates: names of templates that it may use.
        policy, policy_threshold: replace the risk policy of its templates.
        operator: its tokens may use the calls for operators.
    """

    sessions: int | None = None
    concurrent: int | None = None
    rate: float | None = None
    templates: frozenset[str] | None = None
    policy: PolicyMode | None = None
    policy_threshold: Level = "high"
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Tenant:
    """A user of the broker, who sees only its own sessions, files and executions.

    Attributes:
        user: the name or the id of the token that names it; empty if unknown.
        operator: the token has the operators' right.
    """

    name: str
    limits: TenantLimits = field(default_factory=TenantLimits)
    user: str = ""
    operator: bool = False


DEFAULT = Tenant("default")
"""The tenant of the token in the settings."""


class Tenants:
    """All tenants by name. A name without an entry in `limits` is a tenant without limits."""

    def __init__(self, limits: Mapping[str, TenantLimits]) -> None:
        self._limits = limits

    def __getitem__(self, name: str) -> Tenant:
        return Tenant(name, self._limits.get(name, DEFAULT.limits))
