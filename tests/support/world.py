"""Sessions over a pool over a fake backend: the broker without its HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.events import Event, Result, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker.risk import assess
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.pool.runner import Pool
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions.execution import Execution
from kernelbroker_server.sessions.gate import Gate
from kernelbroker_server.sessions.limits import SessionLimits
from kernelbroker_server.sessions.policy import Policies
from kernelbroker_server.sessions.registries import Registries
from kernelbroker_server.sessions.registry import Registry
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.sessions.workspace import Workspaces
from kernelbroker_server.telemetry.facts import Observer, nobody
from kernelbroker_server.tenants.tenant import DEFAULT

from .backend import FakeBackend
from .gateway import Cell
from .waiting import DEADLINE_S


@dataclass
class World:
    backend: FakeBackend
    pool: Pool
    gate: Gate
    registries: Registries
    registry: Registry

    async def open(self, session_id: str | None = None, **options: Any) -> Session:
        async with asyncio.timeout(DEADLINE_S):
            options = {"session_id": session_id, **options}
            return (await self.registry.open(SessionOptions(**options)))[0]


@asynccontextmanager
async def world(
    backend: FakeBackend,
    *,
    pool: PoolLimits | None = None,
    gate: Gate | None = None,
    acquire_timeout: float = DEADLINE_S,
    spec: SandboxSpec | None = None,
    workspaces: Workspaces | None = None,
    observer: Observer = nobody,
    policies: Policies | None = None,
    **limits: Any,
) -> AsyncIterator[World]:
    """It must stop in order, whatever was done with it."""
    settings = {"interrupt_grace": 0.05, **limits}
    gate = gate or Gate(50, 100)
    sizes = pool or PoolLimits(min_size=1, max_size=4)
    warm = Pool(backend, spec or SandboxSpec(), sizes, acquire_timeout=acquire_timeout)
    workspaces = workspaces or Workspaces(backend.kept)
    registries = Registries(
        {"default": warm}, SessionLimits(**settings), gate, workspaces, observer, policies
    )
    registry = registries.of(DEFAULT)
    workspaces.start()
    warm.start()
    try:
        yield World(backend, warm, gate, registries, registry)
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await registries.stop("the test is over")
            await warm.stop(5)
        assert (gate.waiting, gate.running) == (0, 0)


class Breakpoint:
    """A script that says when its cell runs, and ends the cell when told to."""

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
    """Runs until it is interrupted."""
    cell.stdout("running\n")
    await cell.until_interrupted()


async def deaf(cell: Cell) -> None:
    """Runs for ever, whatever it is told."""
    cell.stdout("running\n")
    await asyncio.Event().wait()


def submit(session: Session, code: str = "pass", **request: Any) -> Execution:
    asked = ExecutionRequest(code=code, **request)
    return session.submit(asked, assessment=assess(asked.code, asked.language))


async def events_of(execution: Execution, after: int = 0) -> list[Event]:
    """All events, once the result is in."""
    async with asyncio.timeout(DEADLINE_S):
        return [entry.event async for entry in execution.journal.follow(after)]


async def result_of(execution: Execution) -> Result:
    result = (await events_of(execution))[-1]
    assert isinstance(result, Result)
    return result


async def running(execution: Execution) -> None:
    """Wait until the cell has put something out."""
    async with asyncio.timeout(DEADLINE_S):
        async for entry in execution.journal.follow():
            if isinstance(entry.event, Stdout):
                return
