"""Sessions opened once for each id, closed in time, remembered for a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import pytest
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    SessionGone,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.messages import SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE, METADATA_KEY
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions import registry as registry_module
from kernelbroker_server.sessions.gate import Gate
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.telemetry.facts import Fact, SandboxReplaced, SessionClosed
from kernelbroker_server.telemetry.logs import bound, bound_ids
from kernelbroker_server.tenants.tenant import Tenant

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.gateway import Cell, CellFailed
from tests.support.waiting import DEADLINE_S, broker_tasks, turns, until
from tests.support.world import (
    Breakpoint,
    World,
    interruptible,
    result_of,
    running,
    submit,
    world,
)


def never(backend: FakeBackend) -> asyncio.Event:
    """Launches wait for this event."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    backend.on_launch = launch
    return hold


async def closed(session: Session) -> str:
    """Wait for the session's end; why."""
    with session.executions.watch() as executions:
        async with asyncio.timeout(DEADLINE_S):
            while session.closed_reason is None:
                await executions.get()
    assert session.closed_reason is not None
    return session.closed_reason


async def test_opened_by_many_at_once(backend: FakeBackend) -> None:
    """An id opened by several at once gives one session and one lease; one of them has opened it."""
    async with world(backend) as w:
        options = SessionOptions(session_id="mine")
        answers = await asyncio.gather(*(w.registry.open(options) for _ in range(5)))
        assert len({session for session, _ in answers}) == 1
        assert [is_new for _, is_new in answers].count(True) == 1
        assert w.pool.status().busy_containers == 1
        again, is_new = await w.registry.open(options)
        assert (again, is_new) == (answers[0][0], False)


async def test_what_outlives_a_request_is_not_logged_as_its_own(backend: FakeBackend) -> None:
    """The pool's tasks tell no request, and a session's own its tenant and itself alone."""
    told: dict[str, Mapping[str, str]] = {}

    async def launch(sandbox: FakeSandbox) -> None:
        told[sandbox.id] = bound_ids()

    def listen(fact: Fact) -> None:
        if isinstance(fact, SandboxReplaced):
            told["replaced"] = bound_ids()

    backend.on_launch = launch
    async with world(backend, observer=listen, pool=PoolLimits(0, 1)) as w:
        with bound(request_id="r", tenant="t"):
            session = await w.open("mine")
        await session.restart()
    assert told.pop("replaced") == {"tenant": "t", "session_id": "mine"}
    assert len(told) == 2
    assert not any(told.values())


async def test_a_fault_of_the_brokers_own(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A session whose worker fails is closed and says why, and its end is told once."""
    ends: list[str] = []

    def listen(fact: Fact) -> None:
        if isinstance(fact, SessionClosed):
            ends.append(fact.reason)
        if isinstance(fact, SandboxReplaced):
            raise RuntimeError("unforeseen")

    async with world(backend, observer=listen) as w:
        session = await w.open("mine")
        with pytest.raises(SessionGone, match="a fault of the broker's own"):
            await session.restart()
        await session.close("its client closed it")
        with pytest.raises(SessionGone, match="a fault of the broker's own"):
            w.registry.get("mine")
        await until(lambda: w.pool.status().busy_containers == 0)
    assert ends == ["a fault of the broker's own"]
    assert "unforeseen" in caplog.text


async def test_a_tenant_that_comes_when_all_is_over(backend: FakeBackend) -> None:
    """It is refused, and nothing is left of it."""
    async with world(backend) as w:
        await w.registries.stop("the broker is shutting down")
        late = w.registries.of(Tenant("late"))
        with pytest.raises(Unavailable, match="shutting down"):
            await late.open(SessionOptions())
        await turns(5)
        assert "session sweeper" not in broker_tasks()


@pytest.mark.parametrize("gone", [True, False])
async def test_stopped_while_one_is_opened(backend: FakeBackend, gone: bool) -> None:
    """The end waits for what was begun, also where its client went away."""
    never(backend)
    async with world(backend, pool=PoolLimits(0, 1)) as w:
        opening = asyncio.create_task(w.open("mine"))
        await until(lambda: w.pool.status().pending_requests)
        if gone:
            opening.cancel()
            await asyncio.sleep(0)
        await w.registry.stop("the broker is shutting down")
        assert "session mine opens" not in broker_tasks()
        with pytest.raises(asyncio.CancelledError if gone else Unavailable):
            await opening


async def test_ids_made_by_the_broker(backend: FakeBackend) -> None:
    """Without an id each open is a session of its own."""
    async with world(backend) as w:
        one, other = await w.open(), await w.open()
        assert one.id != other.id
        assert w.registry.list() == [one, other]
        assert w.registry.get(one.id) is one


async def test_unknown(backend: FakeBackend) -> None:
    """An id that no session ever had is not found, and a template that there is not is refused."""
    async with world(backend) as w:
        with pytest.raises(NotFound, match="nobody"):
            w.registry.get("nobody")
        with pytest.raises(BadRequest, match=r"gpu.*default"):
            await w.open(template="gpu")


async def test_same_id_with_another_template(backend: FakeBackend) -> None:
    """A session is not handed out as one of another template."""
    async with world(backend) as w:
        session = await w.open("mine")
        w.registry._pools["other"] = w.pool
        with pytest.raises(Conflict, match="mine"):
            await w.open("mine", template="other")
        assert w.registry.list() == [session]


async def test_environment_is_delivered(backend: FakeBackend) -> None:
    """What belongs to the session alone reaches the kernel as data, before any of its cells."""
    async with world(backend) as w:
        await w.open(env={"A": "'; import os"}, cwd="sub dir")
        cells = [c for s in backend.live.values() for c in s.gateway.cells]
        (cell,) = [c for c in cells if c.code == CONFIGURE_CODE]
        asked = cell.metadata[METADATA_KEY]["configure"]
        assert asked == {"env": {"A": "'; import os"}, "cwd": "sub dir"}


async def test_environment_that_is_refused(backend: FakeBackend) -> None:
    """What the kernel cannot do for the session is told, and leaves neither session nor lease."""

    async def refuse(_cell: Cell) -> None:
        raise CellFailed("FileNotFoundError", "nowhere")

    backend.scripts[CONFIGURE_CODE] = refuse
    async with world(backend) as w:
        with pytest.raises(BadRequest, match="nowhere"):
            await w.open("mine", cwd="nowhere")
        assert w.registry.list() == []
        await until(lambda: w.pool.status().busy_containers == 0)
        backend.scripts.clear()
        assert await w.open("mine")


@pytest.mark.parametrize("how", ["dies", "silent"])
async def test_sandbox_that_fails_at_once(backend: FakeBackend, how: str) -> None:
    """A sandbox that ends, or hangs, before it is the session's leaves no lease behind."""

    async def fail(cell: Cell) -> None:
        if how == "dies":
            await backend.scripts["die"](cell)
        await asyncio.Event().wait()

    backend.scripts[CONFIGURE_CODE] = fail
    async with world(backend, acquire_timeout=0.2) as w:
        with pytest.raises(Unavailable):
            await w.open(env={"A": "1"})
        assert w.registry.list() == []
        await until(lambda: w.pool.status().busy_containers == 0)


async def test_no_sandbox(backend: FakeBackend) -> None:
    """Without a sandbox in time there is no session, and as many wait as may."""
    never(backend)
    limits = PoolLimits(min_size=0, max_size=1, max_waiters=1)
    async with world(backend, pool=limits, acquire_timeout=0.05) as w:
        waiting = asyncio.create_task(w.open())
        await until(lambda: w.pool.status().pending_requests)
        with pytest.raises(TooManyRequests):
            await w.open()
        with pytest.raises(Unavailable) as refused:
            await waiting
        assert refused.value.retry_after
        assert w.registry.list() == []


# Those who go away while it is opened.


@pytest.mark.parametrize("count", range(14))
async def test_open_cancelled_anywhere(backend: FakeBackend, count: int) -> None:
    """An open that is cancelled at any moment leaves neither session nor lease."""
    async with world(backend) as w:
        await until(lambda: w.pool.status().idle_containers)
        opening = asyncio.create_task(w.registry.open(SessionOptions(env={"A": "1"})))
        await turns(count)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            session, _ = await opening
            await session.close("it was opened after all")
        await until(lambda: w.pool.status().busy_containers == 0)
        await until(lambda: not w.registry.list())
        assert w.registry._opening == {}
        assert w.registry._waiting == {}


async def test_one_of_two_goes_away(backend: FakeBackend) -> None:
    """A session that somebody else waits for is opened all the same."""
    hold = never(backend)
    async with world(backend, pool=PoolLimits(0, 2)) as w:
        leaving = asyncio.create_task(w.open("mine"))
        staying = asyncio.create_task(w.open("mine"))
        await until(lambda: w.pool.status().pending_requests)
        leaving.cancel()
        await turns(3)
        hold.set()
        async with asyncio.timeout(DEADLINE_S):
            session = await staying
        assert w.registry.list() == [session]
        assert leaving.cancelled()


@pytest.mark.parametrize("count", range(4))
async def test_who_comes_back_at_once(backend: FakeBackend, count: int) -> None:
    """Who lost the connection while opening, and asks again at once, gets a session of that id."""
    hold = never(backend)
    async with world(backend, pool=PoolLimits(0, 2)) as w:
        leaving = asyncio.create_task(w.open("mine"))
        await until(lambda: w.pool.status().pending_requests)
        leaving.cancel()
        await turns(count)
        again = asyncio.create_task(w.open("mine"))
        await turns(5)
        hold.set()
        async with asyncio.timeout(DEADLINE_S):
            session = await again
        assert w.registry.list() == [session]
        assert (await result_of(submit(session))).success


# The end of sessions.


async def test_closed_sessions_say_why(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed session is gone, with the reason; after an hour its id is as good as new."""
    async with world(backend) as w:
        session = await w.open("mine")
        await session.close("its client closed it")
        for ask in (lambda: w.registry.get("mine"), lambda: w.open("mine")):
            with pytest.raises(SessionGone, match="its client closed it"):
                answer: Any = ask()
                await answer
        assert w.registry.list() == []
        monkeypatch.setattr(registry_module, "_REMEMBERED_S", -1.0)
        assert (await w.open("mine")) is not session
        with pytest.raises(NotFound):
            await w.open("other")
            await w.registry.get("other").close("x")
            w.registry.get("other")


async def test_memory_of_the_gone_is_bounded(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many sessions were closed, only so many are remembered."""
    monkeypatch.setattr(registry_module, "_REMEMBERED_MAX", 2)
    async with world(backend) as w:
        for name in "abc":
            await (await w.open(name)).close("done")
        with pytest.raises(NotFound):
            w.registry.get("a")
        for name in "bc":
            with pytest.raises(SessionGone):
                w.registry.get(name)


async def test_idle_sessions_are_closed(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session without executions for so long is closed, and says so."""
    monkeypatch.setattr(registry_module, "_SWEEP_S", 0.01)
    async with world(backend, idle_timeout=0.05) as w:
        session = await w.open("mine")
        assert "idle for 0.05 s" in await closed(session)
        with pytest.raises(SessionGone, match="idle"):
            w.registry.get("mine")
        await until(lambda: w.pool.status().busy_containers == 0)


async def test_times_are_not_the_wall_clocks(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is set closes no session and forgets none; the time that passes does."""
    monkeypatch.setattr(registry_module, "_SWEEP_S", 0.01)
    now = 1000.0
    async with world(backend, gate=Gate(50, 100, lambda: now)) as w:
        session, gone = await w.open(), await w.open("gone")
        await gone.close("done")
        far = time.time() + 10**6
        monkeypatch.setattr(time, "time", lambda: far)
        assert session.expires_at[0] == now + session.idle_timeout
        with pytest.raises(SessionGone):
            w.registry.get("gone")
        assert (await result_of(submit(session))).success
        now += session.idle_timeout + 1
        assert "idle for" in await closed(session)
        now += 3600
        with pytest.raises(NotFound):
            w.registry.get("gone")


async def test_a_running_cell_is_not_idle(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session is not idle while a cell runs, and has its whole time again when that has ended."""
    monkeypatch.setattr(registry_module, "_SWEEP_S", 0.01)
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open(idle_timeout=0.05)
        execution = submit(session, "wait", timeout=0.3)
        result = await result_of(execution)
        assert result.error_detail is not None
        assert result.error_detail.cause == "timeout"
        assert "idle" in await closed(session)


async def test_lifetime(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session ends with its lifetime, whatever runs in it."""
    monkeypatch.setattr(registry_module, "_SWEEP_S", 0.01)
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open(max_lifetime=0.1)
        execution = submit(session, "wait")
        await running(execution)
        assert "lifetime of 0.1 s" in await closed(session)
        result = await result_of(execution)
        assert "lifetime of 0.1 s" in (result.error or "")


async def test_times_are_capped(backend: FakeBackend) -> None:
    """No session can ask for more time than there is."""
    async with world(backend, max_lifetime=100, idle_timeout=50) as w:
        session = await w.open(max_lifetime=1e9, idle_timeout=1e9)
        assert (session.max_lifetime, session.idle_timeout) == (100, 100)
        session = await w.open()
        assert (session.max_lifetime, session.idle_timeout) == (100, 50)


async def test_ephemeral(backend: FakeBackend) -> None:
    """A session for one execution is gone with its block, however that ends."""
    async with world(backend) as w:
        with pytest.raises(ZeroDivisionError):
            async with w.registry.ephemeral(SessionOptions()) as session:
                assert (await result_of(submit(session))).success
                raise ZeroDivisionError
        await until(lambda: w.pool.status().busy_containers == 0)
        assert w.registry.list() == []


async def stop(w: World) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await w.registry.stop("closing time")


async def test_stop(backend: FakeBackend) -> None:
    """When the broker stops every session is closed with the reason, and no new one is opened."""
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        sessions = [await w.open(), await w.open()]
        execution = submit(sessions[0], "wait")
        await running(execution)
        await stop(w)
        assert [session.closed_reason for session in sessions] == ["closing time"] * 2
        assert (await result_of(execution)).error == "SessionClosed: closing time"
        with pytest.raises(Unavailable):
            await w.open()
        await stop(w)


async def test_drain(backend: FakeBackend) -> None:
    """Idle sessions are closed at once, the others when what runs, waits or is transferred has ended."""
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend, pool=PoolLimits(min_size=1, max_size=3)) as w:
        idle, busy, visited = await w.open("idle"), await w.open("busy"), await w.open("visited")
        executions = [submit(busy, "hold"), submit(busy)]
        await hold.reached()
        waits = asyncio.create_task(w.open("fourth"))
        await until(lambda: w.pool.status().pending_requests)
        async with visited.visit():
            draining = asyncio.create_task(w.registries.drain("closing time"))
            with pytest.raises(Unavailable) as refused:
                await waits
            assert refused.value.retry_after
            assert await closed(idle) == "closing time"
            with pytest.raises(SessionGone, match="closing time"):
                w.registry.get("idle")
            for refusing in (lambda: submit(busy), lambda: submit(visited)):
                with pytest.raises(Unavailable) as refused:
                    refusing()
                assert refused.value.retry_after
            await turns(20)
            assert w.registry.list() == [busy, visited]
            assert await w.open("busy") is busy  # whose client may have lost its connection
        assert await closed(visited) == "closing time"
        hold.go_on.set()
        assert [(await result_of(execution)).success for execution in executions] == [True, True]
        assert await closed(busy) == "closing time"
        async with asyncio.timeout(DEADLINE_S):
            await draining
        with pytest.raises(Unavailable):
            await w.open()


async def test_drain_is_given_up(backend: FakeBackend) -> None:
    """Who does not wait for the end of a cell stops it."""
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        execution = submit(session, "wait")
        await running(execution)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await w.registries.drain("closing time")
        assert session.closed_reason is None
        await stop(w)
        assert (await result_of(execution)).error == "SessionClosed: closing time"


@pytest.mark.parametrize("count", range(14))
async def test_drain_while_opening(backend: FakeBackend, count: int) -> None:
    """A session that is being opened meanwhile is refused, or closed as the others are."""
    async with world(backend) as w:
        await until(lambda: w.pool.status().idle_containers)
        opening = asyncio.create_task(w.registry.open(SessionOptions(env={"A": "1"})))
        await turns(count)
        async with asyncio.timeout(DEADLINE_S):
            await w.registries.drain("closing time")
        with contextlib.suppress(Unavailable):
            session, _ = await opening
            assert session.closed_reason == "closing time"
        assert w.registry.list() == []
        await until(lambda: w.pool.status().busy_containers == 0)


@pytest.mark.parametrize("count", range(14))
async def test_stop_while_opening(backend: FakeBackend, count: int) -> None:
    """A session that is being opened when the broker stops leaves nothing, and its client is told."""
    async with world(backend) as w:
        await until(lambda: w.pool.status().idle_containers)
        opening = asyncio.create_task(w.registry.open(SessionOptions(env={"A": "1"})))
        await turns(count)
        await stop(w)
        with contextlib.suppress(Unavailable):
            session, _ = await opening
            assert session.closed_reason == "closing time"
        await until(lambda: w.pool.status().busy_containers == 0)
