"""Executions that no client waits for: stored before they are accepted, found again by their id alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kernelbroker.protocol.errors import NotFound
from kernelbroker.protocol.events import Stdout
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_server.service.idempotency import IdempotencyKey
from kernelbroker_server.service.target import Target
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.tenants.tenant import Tenant, TenantLimits

from tests.service.test_after_a_crash import after_a_kill, started
from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.waiting import DEADLINE_S
from tests.support.world import Breakpoint, events_of, interruptible, result_of, running, world


async def hello(cell: Cell) -> None:
    cell.stdout("hello")


def request(code: str, execution_id: str | None = None) -> ExecutionRequest:
    return ExecutionRequest(code=code, execution_id=execution_id)


async def test_an_accepted_execution_is_stored(backend: FakeBackend, tmp_path: Path) -> None:
    """After a kill the execution is known by its id, has a result that says what happened, and its key
    does not run it again."""
    point, key = Breakpoint(), IdempotencyKey("k", b"f")
    backend.scripts.update(wait=point)
    first = await started(tmp_path / "first")
    async with world(backend, store=first) as w:
        submitted = await w.service.executions.accept(request("wait", "one"), Target(), key)
        second = await after_a_kill(tmp_path / "first", "second")
        await point.reached()
        third = await after_a_kill(tmp_path / "first", "third")
        point.go_on.set()
        await result_of(submitted.log)
    await first.stop()
    for store, causes in ((second, {"rejected", "sandbox_lost"}), (third, {"sandbox_lost"})):
        async with world(backend, store=store) as w:
            session_id, log = await w.service.executions.locate("one")
            assert session_id == submitted.session_id
            assert log.request.code == "wait"
            assert log.outcome in causes
            again = await w.service.executions.accept(request("wait", "one"), Target(), key)
            assert again.replayed
            assert (again.session_id, again.log.id) == (session_id, "one")
            assert again.log.outcome in causes
            assert backend.cells == []
        await store.stop()


async def test_without_a_session_the_sandbox_goes_and_the_result_stays(
    backend: FakeBackend, tmp_path: Path
) -> None:
    """A cell without a session runs to its end alone. Then its sandbox is removed; its result is found."""
    backend.scripts.update(hello=hello)
    store = await started(tmp_path / "state")
    async with world(backend, store=store) as w:
        submitted = await w.service.executions.accept(request("hello"), Target())
        assert submitted.session is not None
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait([submitted.session.closed])
        session_id, log = await w.service.executions.locate(submitted.log.id)
        assert session_id == submitted.session_id
        assert [e.content for e in await events_of(log) if isinstance(e, Stdout)] == ["hello"]
        assert log.outcome == "success"
    await store.stop()


@pytest.mark.parametrize("is_durable", [False, True])
async def test_the_latest_execution_with_an_id_is_found(
    backend: FakeBackend, tmp_path: Path, is_durable: bool
) -> None:
    """An id that was used in several sessions is that of the latest execution, also when all are closed."""
    store = await started(tmp_path / "state") if is_durable else None
    async with world(backend, store=store) as w:
        executions = w.service.executions
        for name in ("first", "second"):
            submitted = await executions.accept(request("pass", "same"), Target(name))
            await result_of(submitted.log)
            assert (await executions.locate("same"))[0] == name
        for name in ("first", "second"):
            await w.service.sessions.close(name)
        assert (await executions.locate("same"))[0] == "second"
    if isinstance(store, DurableStore):
        await store.stop()


async def test_another_tenant_knows_nothing_of_it(backend: FakeBackend, tmp_path: Path) -> None:
    """The id of another tenant's execution is an unknown id, for reading and for interrupting."""
    backend.scripts.update(block=interruptible)
    store = await started(tmp_path / "state")
    async with world(backend, store=store) as w:
        submitted = await w.service.executions.accept(request("block", "mine"), Target("s"))
        await running(submitted.log)
        other = w.tenants.of(Tenant("other", TenantLimits())).executions
        with pytest.raises(NotFound, match="no execution mine: check its id"):
            await other.locate("mine")
        with pytest.raises(NotFound):
            await other.interrupt("mine")
        assert submitted.log.result is None
        await w.service.executions.interrupt("mine")
        assert (await result_of(submitted.log)).error_detail.cause == "interrupted"  # type: ignore[union-attr]
        await w.service.executions.interrupt("mine")  # it has ended: nothing happens
    await store.stop()


async def test_a_session_with_work_is_not_idle(backend: FakeBackend) -> None:
    """A session does not expire by its idle_timeout while an execution runs or waits in it."""
    backend.scripts.update(block=interruptible)
    async with world(backend) as w:
        session = await w.open("s")
        executions = w.service.executions
        first = (await executions.accept(request("block"), Target("s", must_exist=True))).log
        second = (await executions.accept(request("block"), Target("s", must_exist=True))).log
        session.idle_timeout = 0.001
        for log in (first, second):
            await running(log)
            assert "lifetime" in session.expires_at[1]
            await executions.interrupt(log.id)
            await result_of(log)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait([session.closed])
        assert "idle" in (session.closed_reason or "")
