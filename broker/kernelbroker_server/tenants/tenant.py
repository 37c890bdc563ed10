"""Tenants: whose sessions, files and executions are whose, and how much each may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelbroker.protocol.findings import Level, PolicyMode


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may have at most; None for no bound but the broker's own.

    Attributes:
        sessions: open at once.
        concurrent: executions that run at once, over all its sessions.
        rate: executions that it may submit, a minute.
        templates: those it may use.
        policy, policy_threshold: what becomes of risky code, in the place of what its templates say.
    """

    sessions: int | None = None
    concurrent: int | None = None
    rate: float | None = None
    templates: frozenset[str] | None = None
    policy: PolicyMode | None = None
    policy_threshold: Level = "high"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One who sees what is its own, and nothing of anybody else's."""

    name: str
    limits: TenantLimits = field(default_factory=TenantLimits)


DEFAULT = Tenant("default")
"""Who holds the one token of a broker that has no token file."""


class Tenants:
    """All tenants by name; one that has no limits of its own has none."""

    def __init__(self, limits: Mapping[str, TenantLimits]) -> None:
        self._limits = limits

    def __getitem__(self, name: str) -> Tenant:
        return Tenant(name, self._limits.get(name, DEFAULT.limits))
