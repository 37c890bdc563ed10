"""The use cases of one tenant. Every protocol calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from kernelbroker.protocol.operations import CodeOperationResponse

from ..pool.runner import Pool
from ..sessions.admission import Admission, TenantQueue
from ..sessions.limits import SessionLimits
from ..sessions.projects import ProjectRoots
from ..sessions.registry import Registry
from ..sessions.routes import Routes, Routing
from ..sessions.saved_state import KIND
from ..sessions.store import EventStore
from ..supervisor import Supervisor
from ..telemetry.events import Observer, ignore_event
from ..tenants.tenant import Tenant, Tenants
from ..workspaces.store import WorkspaceStore
from .checkpoints import Checkpoints
from .confirmations import Confirmations
from .executions import Executions
from .external_browsers import ExternalBrowsers
from .forges import Forges
from .kernels import Kernels
from .notebooks import Notebooks
from .policy import Policies
from .processes import Processes
from .session_events import SessionEvents
from .sessions import Sessions
from .sleeper import Sleeper
from .webhooks import Webhooks
from .workspace_files import WorkspaceFiles


class TenantService:
    """The use cases of one tenant.

    Attributes:
        identity: the tenant.
        name: the tenant's name.
        queue: the tenant's executions that wait and run.
        pools: the pools of the templates that the tenant may use, by name.
        forges: where its sessions may push to, as far as their templates allow.
    """

    def __init__(
        self,
        tenant: Tenant,
        registry: Registry,
        queue: TenantQueue,
        policies: Policies,
        workspaces: WorkspaceStore,
        store: EventStore,
        webhooks: Webhooks,
        observer: Observer,
        forges: Forges,
        external_browsers: ExternalBrowsers | None = None,
    ) -> None:
        self.identity = tenant
        self._policies, self._observer = policies, observer
        self._external_browsers = external_browsers or ExternalBrowsers()
        self.name = tenant.name
        self.registry = registry
        self.queue = queue
        self.forges = forges
        self.pools = registry.pools
        self.workspaces = workspaces
        self.workspace_files = WorkspaceFiles(registry, workspaces, observer)
        self.notebooks = Notebooks(registry, store)
        self.sessions = Sessions(registry, store)
        self.events = SessionEvents(registry, store)
        self.executions = Executions(registry, registry.limits, queue, policies, store, webhooks)
        self.kernels = Kernels(self.sessions, self.executions)
        self.confirmations = Confirmations(registry, self.executions, policies.pending, observer)
        self.checkpoints = Checkpoints(registry, self.executions, workspaces.checkpoints)
        self.processes = Processes(policies)
        self.sleeper = Sleeper(
            registry, self.checkpoints, self.processes, workspaces.checkpoints, store
        )

    async def browse(self, action: str, parameters: dict[str, Any]) -> CodeOperationResponse:
        """Use the operator's browser. Raises as `ExternalBrowsers.act`."""
        self.queue.take_rate()
        return await self._external_browsers.act(
            self.name, self._policies, self._observer, action, parameters
        )

    async def stop(self, reason: str, *, leave: bool = False) -> None:
        """Refuse new sessions and close all, with `leave` except those that are left."""
        self.sessions.stop()
        self.executions.stop()
        await self.sleeper.stop()
        await self.registry.stop(reason, leave=leave)


class TenantServices:
    """The service of each tenant. A tenant cannot name the objects of another one.

    Attributes:
        routes: where cells can run, of tenants that may use all templates.
        workspaces: the store of all tenants' files.
        stopping: whether new sessions are refused.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        limits: SessionLimits,
        admission: Admission,
        workspaces: WorkspaceStore,
        store: EventStore,
        observer: Observer = ignore_event,
        policies: Policies | None = None,
        supervisor: Supervisor | None = None,
        webhooks: Webhooks | None = None,
        routing: Routing | None = None,
        projects: ProjectRoots | None = None,
        forges: Forges | None = None,
        external_browsers: ExternalBrowsers | None = None,
    ) -> None:
        self.external_browsers = external_browsers or ExternalBrowsers()
        self.routes = Routes(pools, routing)
        self._routing = routing
        self._projects = projects
        self._forges = forges or Forges()
        self.stopping = False
        self._admission = admission
        self.workspaces = workspaces
        self._store = store
        self._pools = pools
        self._limits = limits
        self._observer = observer
        self._policies = policies or Policies()
        self._supervisor = supervisor or Supervisor()
        self._webhooks = webhooks or Webhooks(store)
        self._by_tenant: dict[str, TenantService] = {}

    def of(self, tenant: Tenant) -> TenantService:
        """Return the tenant's service, the same object on every call."""
        if (service := self._by_tenant.get(tenant.name)) is None:
            allowed = tenant.limits.templates
            pools = {n: p for n, p in self._pools.items() if allowed is None or n in allowed}
            queue = self._admission.queue_of(tenant)
            registry = Registry(
                tenant,
                pools,
                self._limits,
                queue,
                self.workspaces,
                self._store,
                self._observer,
                self._supervisor,
                self._routing,
                self._projects,
            )
            registry.stopping = self.stopping
            policies = self._policies.for_tenant(tenant, self._observer, self._store)
            service = TenantService(
                tenant,
                registry,
                queue,
                policies,
                self.workspaces,
                self._store,
                self._webhooks,
                self._observer,
                self._forges,
                self.external_browsers,
            )
            self._by_tenant[tenant.name] = service
        return service

    def __iter__(self) -> Iterator[TenantService]:
        return iter(self._by_tenant.values())

    @property
    def open_sessions(self) -> int:
        return sum(len(service.sessions.list()) for service in self)

    @property
    def asleep_sessions(self) -> int:
        return sum(s.sleeping.is_asleep for service in self for s in service.registry.list())

    async def resume_asleep(self, tenants: Tenants) -> None:
        """Take over the sessions that an earlier broker left asleep. Call it before clients can connect."""
        for entry in self._store.entries(KIND):
            await self.of(tenants[entry.tenant]).sleeper.resume(entry.value)

    async def close_expired(self) -> None:
        """Close expired sessions until cancelled. Run under the supervisor.

        Raises:
            ExceptionGroup: it failed for some tenants. It was done for all others.
        """
        while True:
            self._store.expect_newest()
            errors: list[Exception] = []
            for service in self:
                try:
                    service.registry.close_expired()
                    service.sleeper.put_to_sleep(service.queue.clock())
                except Exception as exc:
                    errors.append(exc)
            if errors:
                raise ExceptionGroup("expired sessions of some tenants are not closed", errors)
            await asyncio.sleep(_SWEEP_S)

    async def put_to_sleep(self) -> None:
        """Put all sessions to sleep that outlive the broker, with what can be saved of them."""
        await asyncio.gather(*(service.sleeper.sleep_all() for service in self))

    async def drain(self, reason: str, *, leave: bool = False) -> None:
        """Refuse new sessions and executions, and close each session as soon as it is idle.

        Args:
            leave: leave those that can go on to the next broker instead.
        """
        self.stopping = True
        self._admission.close()
        await asyncio.gather(*(service.registry.drain(reason, leave=leave) for service in self))

    async def stop(self, reason: str, *, leave: bool = False) -> None:
        """Refuse new sessions and close all, with `leave` except those that are left."""
        self.stopping = True
        self._admission.close()
        try:
            await asyncio.gather(*(service.stop(reason, leave=leave) for service in self))
        finally:
            await self._policies.stop()


_SWEEP_S = 0.25
"""How late a session may be closed."""
