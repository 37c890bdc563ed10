"""The broker without HTTP: sessions with a pool and a fake backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.events import Event, Result, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker.risk import assess
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.pool.runner import Pool
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.service.executions import Executions
from kernelbroker_server.service.policy import Policies
from kernelbroker_server.service.tenant_service import TenantService, TenantServices
from kernelbroker_server.service.webhooks import Webhooks
from kernelbroker_server.sessions.admission import Admission
from kernelbroker_server.sessions.limits import SessionLimits
from kernelbroker_server.sessions.memory_store import MemoryStore
from kernelbroker_server.sessions.registry import Registry
from kernelbroker_server.sessions.routes import Routing
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.sessions.store import EventStore, ExecutionLog
from kernelbroker_server.supervisor import Supervisor
from kernelbroker_server.telemetry.events import Observer, ignore_event
from kernelbroker_server.tenants.tenant import DEFAULT
from kernelbroker_server.workspaces.directory_store import DirectoryStore
from kernelbroker_server.workspaces.store import WorkspaceStore

from .backend import FakeBackend
from .gateway import Cell
from .waiting import DEADLINE_S


@dataclass
class World:
    backend: FakeBackend
    pool: Pool
    admission: Admission
    tenants: TenantServices
    service: TenantService
    store: EventStore

    @property
    def registry(self) -> Registry:
        return self.service.registry

    @property
    def workspaces_in_use(self) -> bool:
        """Whether a session has a workspace, or a workspace is still being put back."""
        store = self.service.workspaces
        assert isinstance(store, DirectoryStore)
        return bool(store._claims)

    async def open(self, session_id: str | None = None, **options: Any) -> Session:
        async with asyncio.timeout(DEADLINE_S):
            options = {"session_id": session_id, **options}
            return (await self.registry.open(SessionOptions(**options)))[0]


_worlds: list[World] = []
"""Those that are, for `submit`."""


@asynccontextmanager
async def world(
    backend: FakeBackend,
    *,
    pool: PoolLimits | None = None,
    admission: Admission | None = None,
    acquire_timeout: float = DEADLINE_S,
    spec: SandboxSpec | None = None,
    workspaces: WorkspaceStore | None = None,
    observer: Observer = ignore_event,
    policies: Policies | None = None,
    store: EventStore | None = None,
    webhooks: Webhooks | None = None,
    others: Mapping[str, FakeBackend] | None = None,
    routing: Routing | None = None,
    **limits: Any,
) -> AsyncIterator[World]:
    """Run the broker without HTTP. At the end it must stop in order.

    Args:
        others: the backends of further templates, by name.
    """
    settings = {"interrupt_grace": 0.05, **limits}
    admission = admission or Admission(50, 100)
    sizes = pool or PoolLimits(min_size=1, max_size=4)
    warm = Pool(backend, spec or SandboxSpec(), sizes, acquire_timeout=acquire_timeout)
    pools = {"default": warm}
    for name, other in (others or {}).items():
        own = SandboxSpec(template=name)
        pools[name] = Pool(other, own, PoolLimits(min_size=0), acquire_timeout=acquire_timeout)
    workspaces = workspaces or DirectoryStore(backend.data_dir)
    supervisor = Supervisor()
    store = store or MemoryStore()
    tenants = TenantServices(
        pools,
        SessionLimits(**settings),
        admission,
        workspaces,
        store,
        observer,
        policies,
        supervisor,
        webhooks,
        routing,
    )
    supervisor.start("session expiry", tenants.close_expired)
    workspaces.start(supervisor)
    for each in pools.values():
        each.start()
    made = World(backend, warm, admission, tenants, tenants.of(DEFAULT), store)
    _worlds.append(made)
    try:
        yield made
    finally:
        _worlds.remove(made)
        async with asyncio.timeout(DEADLINE_S):
            await supervisor.stop()
            await tenants.stop("the test is over")
            await workspaces.stop()
            for each in pools.values():
                await each.stop(5)
        assert (admission.waiting, admission.running) == (0, 0)


class Breakpoint:
    """A script that reports when its cell runs, and ends the cell on request."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, cell: Cell) -> None:
        self.running.set()
        await self.go_on.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.running.wait()


async def interruptible(cell: Cell) -> None:
    """A script that runs until it is interrupted."""
    cell.stdout("running\n")
    await cell.until_interrupted()


async def deaf(cell: Cell) -> None:
    """A script that runs forever and ignores interrupts."""
    cell.stdout("running\n")
    await asyncio.Event().wait()


def executions_of(session: Session) -> Executions:
    """The use cases of the tenant to which the session belongs."""
    for each in _worlds:
        for service in each.tenants:
            if session in service.registry.list():
                return service.executions
    return _worlds[-1].service.executions


def submit(session: Session, code: str = "pass", **request: Any) -> ExecutionLog:
    asked = ExecutionRequest(code=code, **request)
    assessment = assess(asked.code, asked.language or "python")
    return executions_of(session).submit(session, asked, assessment=assessment)


def watchers_of(session: Session) -> int:
    """The number of watchers of the session's executions."""
    store = session._store
    assert isinstance(store, MemoryStore)
    return len(store._sessions[session.key].watchers) if session.key in store._sessions else 0


async def events_of(log: ExecutionLog, after: int = 0) -> list[Event]:
    """All events of an execution, after its result has arrived."""
    async with asyncio.timeout(DEADLINE_S):
        return [stored.event async for stored in log.follow(after)]


async def result_of(log: ExecutionLog) -> Result:
    result = (await events_of(log))[-1]
    assert isinstance(result, Result)
    return result


async def running(log: ExecutionLog) -> None:
    """Wait until the cell has sent output."""
    async with asyncio.timeout(DEADLINE_S):
        async for stored in log.follow():
            if isinstance(stored.event, Stdout):
                return
