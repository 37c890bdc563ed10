"""Each tenant's registry: what one holds, no other one can name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from ..pool.runner import Pool
from ..telemetry.facts import Observer, nobody
from ..tenants.tenant import Tenant
from .gate import Gate
from .limits import SessionLimits
from .policy import Policies
from .registry import Registry
from .workspace import Workspaces


class Registries:
    """
    Attributes:
        stopping: no session is opened any more.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        limits: SessionLimits,
        gate: Gate,
        workspaces: Workspaces,
        observer: Observer = nobody,
        policies: Policies | None = None,
    ) -> None:
        self.gate = gate
        self._workspaces = workspaces
        self.stopping = False
        self._pools = pools
        self._limits = limits
        self._observer = observer
        self._policies = policies or Policies()
        self._by_tenant: dict[str, Registry] = {}

    def of(self, tenant: Tenant) -> Registry:
        """The tenant's registry, the same each time."""
        if (registry := self._by_tenant.get(tenant.name)) is None:
            allowed = tenant.limits.templates
            pools = {n: p for n, p in self._pools.items() if allowed is None or n in allowed}
            registry = Registry(
                tenant,
                pools,
                self._limits,
                self.gate.of(tenant),
                self._observer,
                self._policies.of(tenant, self._observer),
                self._workspaces,
            )
            registry.stopping = self.stopping
            self._by_tenant[tenant.name] = registry
            if not self.stopping:  # else nobody would stop it, and it has no sessions to see to
                registry.start()
        return registry

    def __iter__(self) -> Iterator[Registry]:
        return iter(self._by_tenant.values())

    @property
    def open_sessions(self) -> int:
        return sum(len(registry.list()) for registry in self)

    async def drain(self, reason: str) -> None:
        """Refuse new sessions and executions, and close each session as soon as nothing runs in it."""
        self.stopping = True
        self.gate.close()
        await asyncio.gather(*(registry.drain(reason) for registry in self))

    async def stop(self, reason: str) -> None:
        """Refuse new sessions and close all."""
        self.stopping = True
        self.gate.close()
        try:
            await asyncio.gather(*(registry.stop(reason) for registry in self))
            await self._workspaces.stop()
        finally:
            await self._policies.stop()
