"""Idempotency keys and confirmations after the broker was killed: nothing runs twice."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from kernelbroker.protocol.errors import ConfirmationRequired, Conflict, SessionGone
from kernelbroker.protocol.events import Stdout
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker.risk import assess
from kernelbroker_server.service.idempotency import IdempotencyKey
from kernelbroker_server.service.policy import Policies, Policy
from kernelbroker_server.service.target import Target
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.telemetry.events import ignore_event
from kernelbroker_server.tenants.tenant import DEFAULT

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.world import Breakpoint, World, events_of, world
from tests.support.world import running as has_run

RISKY = "import shutil; shutil.rmtree('/data')"


async def started(path: Path) -> DurableStore:
    store = DurableStore(path)
    await store.start()
    await store.end_lost()
    return store


async def after_a_kill(path: Path, name: str) -> DurableStore:
    """Return a store with what a kill would leave now: the files as they are."""
    copy = path.with_name(name)
    await asyncio.to_thread(shutil.copytree, path, copy)
    return await started(copy)


async def execute(
    w: World, key: IdempotencyKey, code: str, target: Target | None = None
) -> tuple[bool, list[object]]:
    """Run code under a key. Returns whether it was replayed, and its events."""
    executions = w.service.executions
    async with executions.execute(ExecutionRequest(code=code), target or Target(), key) as done:
        return done.replayed, list(await events_of(done.log))


async def test_a_key_gives_the_stored_answer(backend: FakeBackend, tmp_path: Path) -> None:
    """A request that has ended, one that was running, and one whose fate is unknown never run again."""
    ran: list[str] = []
    point = Breakpoint()

    async def count(cell: Cell) -> None:
        ran.append("count")
        cell.stdout("counted")

    async def wait(cell: Cell) -> None:
        ran.append("wait")
        cell.stdout("it runs")
        await point(cell)

    backend.scripts.update(count=count, wait=wait)
    ended, running, unknown = (IdempotencyKey(name, name.encode()) for name in "eru")
    in_session = Target("mine")
    first = await started(tmp_path / "first")
    async with world(backend, store=first) as w:
        replayed, events = await execute(w, ended, "count", in_session)
        assert not replayed
        task = asyncio.create_task(execute(w, running, "wait"))
        await point.reached()
        session = next(each for each in w.registry.list() if each.id != "mine")
        await has_run(next(iter(session.executions.values())))
        stored = w.service.executions._submitted._stored
        assert stored is not None
        stored.put(unknown)  # as `once` does, before it asks for a sandbox
        second = await after_a_kill(tmp_path / "first", "second")
        point.go_on.set()
        await task
    await first.stop()
    assert ran == ["count", "wait"]
    async with world(backend, store=second) as w:
        assert await execute(w, ended, "count", in_session) == (True, events)
        replayed, found = await execute(w, running, "wait")
        assert replayed
        assert [each.content for each in found if isinstance(each, Stdout)] == ["it runs"]
        for name, code in ((running, "wait"), (unknown, "count")):
            replayed, found = await execute(w, name, code)
            assert replayed
            assert found[-1].error_detail.cause == "sandbox_lost"  # type: ignore[attr-defined]
        with pytest.raises(Conflict):
            await execute(w, IdempotencyKey("e", b"another request"), "count")
        assert ran == ["count", "wait"]
        assert w.registry.list() == []
        assert not (await execute(w, IdempotencyKey("n", b"n"), "count"))[0]
    await second.stop()


async def test_a_key_of_a_lost_session_opens_no_other(backend: FakeBackend, tmp_path: Path) -> None:
    """A request to open a session, repeated after a kill, is told that the session has ended."""
    key, unknown = IdempotencyKey("k", b"f"), IdempotencyKey("u", b"f")
    first = await started(tmp_path / "first")
    async with world(backend, store=first) as w:
        session, _ = await w.service.sessions.open(SessionOptions(), key)
        stored = w.service.sessions._opened._stored
        assert stored is not None
        stored.put(unknown)
        second = await after_a_kill(tmp_path / "first", "second")
    await first.stop()
    async with world(backend, store=second) as w:
        for each in (key, unknown):
            with pytest.raises(SessionGone, match="the broker ended"):
                await w.service.sessions.open(SessionOptions(), each)
        with pytest.raises(SessionGone, match="the broker ended"):
            await w.service.sessions.resolve(session.id)
        assert w.registry.list() == []
    await second.stop()


async def test_a_refused_request_leaves_its_key_free(backend: FakeBackend, tmp_path: Path) -> None:
    """The key of a request that was refused can be used after a kill."""
    key = IdempotencyKey("k", b"f")
    first = await started(tmp_path / "first")
    async with world(backend, store=first) as w:
        with pytest.raises(Exception, match="no template"):
            await w.service.sessions.open(SessionOptions(template="unknown"), key)
        second = await after_a_kill(tmp_path / "first", "second")
    await first.stop()
    async with world(backend, store=second) as w:
        _, is_new = await w.service.sessions.open(SessionOptions(), key)
        assert is_new
    await second.stop()


def check(policies: Policies, token: str | None = None) -> list[Finding]:
    request = ExecutionRequest(code=RISKY, confirm=token)
    return policies.check(request, "default", "s", assess(RISKY, "python"))


async def test_a_confirmation_is_good_once_also_after_a_kill(tmp_path: Path) -> None:
    """A confirmation is valid after a kill, and once it is used, also after another one."""
    stores = [await started(tmp_path / "0")]
    policies = Policies({"default": Policy("confirm", "safe")})
    desk = policies.for_tenant(DEFAULT, ignore_event, stores[0])
    tokens = []
    for _ in range(2):
        with pytest.raises(ConfirmationRequired) as asked:
            check(desk)
        assert asked.value.confirmation is not None
        tokens.append(asked.value.confirmation)
    check(desk, tokens[0])
    for number in (1, 2):
        stores.append(await after_a_kill(tmp_path / str(number - 1), str(number)))
        desk = policies.for_tenant(DEFAULT, ignore_event, stores[-1])
        with pytest.raises(ConfirmationRequired):
            check(desk, tokens[0])
        if number == 1:
            check(desk, tokens[1])
    with pytest.raises(ConfirmationRequired):
        check(desk, tokens[1])
    for store in stores:
        await store.stop()
