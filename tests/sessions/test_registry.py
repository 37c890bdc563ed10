"""The sessions of a tenant: opened once for each id, closed in time, remembered for a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

import pytest
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    InternalError,
    NotFound,
    SessionGone,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE, METADATA_KEY
from kernelbroker_server import supervisor as supervisor_module
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.service import tenant_service
from kernelbroker_server.service.target import Target
from kernelbroker_server.sessions import gone as gone_module
from kernelbroker_server.sessions import registry
from kernelbroker_server.sessions.admission import Admission
from kernelbroker_server.sessions.registry import Registry
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.telemetry.events import SandboxReplaced, TelemetryEvent
from kernelbroker_server.telemetry.logs import bound, bound_ids
from kernelbroker_server.telemetry.origin import set_origin
from kernelbroker_server.tenants.tenant import Tenant

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.gateway import Cell, CellFailed
from tests.support.waiting import DEADLINE_S, MOMENTS, broker_tasks, moment, turns, until
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
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([session.closed])
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


async def test_background_tasks_are_not_logged_with_a_request(backend: FakeBackend) -> None:
    """Tasks of the pool carry no request id; tasks of a session carry its tenant and id."""
    told: dict[str, Mapping[str, str]] = {}

    async def launch(sandbox: FakeSandbox) -> None:
        told[sandbox.id] = bound_ids()

    def listen(fact: TelemetryEvent) -> None:
        if isinstance(fact, SandboxReplaced):
            told["replaced"] = bound_ids()

    backend.on_launch = launch
    async with world(backend, observer=listen, pool=PoolLimits(0, 1)) as w:
        with bound(request_id="r"):
            session = await w.open("mine")
        await session.restart()
    assert told.pop("replaced") == {"tenant": "default", "session_id": "mine"}
    assert len(told) == 2
    assert not any(told.values())


async def test_a_fault_while_the_sandbox_is_replaced(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A restart that fails for an unforeseen reason says so; the session goes on with the next use."""
    faults = ["unforeseen"]

    def listen(event: TelemetryEvent) -> None:
        if isinstance(event, SandboxReplaced) and faults:
            raise RuntimeError(faults.pop())

    async with world(backend, observer=listen) as w:
        session = await w.open("mine")
        with pytest.raises(InternalError):
            await session.restart()
        result = await result_of(submit(session))
        assert (result.success, result.kernel_restarted) == (True, True)
        await session.close("its client closed it")
        await until(lambda: w.pool.status().busy_containers == 0)
    assert "unforeseen" in caplog.text


async def test_a_stopped_registry_refuses_tenants(backend: FakeBackend) -> None:
    """A tenant that comes after the stop is refused, and leaves nothing behind."""
    async with world(backend) as w:
        await w.tenants.stop("the broker is shutting down")
        late = w.tenants.of(Tenant("late"))
        with pytest.raises(Unavailable, match="shutting down"):
            await late.sessions.open(SessionOptions())
        assert late.sessions.list() == []


@pytest.mark.parametrize("gone", [True, False])
async def test_stop_waits_for_an_opening(backend: FakeBackend, gone: bool) -> None:
    """The stop waits for an opening, even if its client has disconnected."""
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
    """Without an id each `open` makes a new session."""
    async with world(backend) as w:
        one, other = await w.open(), await w.open()
        assert one.id != other.id
        assert w.registry.list() == [one, other]
        assert w.registry.get(one.id) is one


async def test_unknown_ids_and_templates_are_refused(backend: FakeBackend) -> None:
    """An unknown session id is not found, and an unknown template is refused."""
    async with world(backend) as w:
        with pytest.raises(NotFound, match="nobody"):
            w.registry.get("nobody")
        with pytest.raises(BadRequest, match=r"gpu.*default"):
            await w.open(template="gpu")


async def test_same_id_with_another_template(backend: FakeBackend) -> None:
    """A session is not handed out as one of another template."""
    async with world(backend) as w:
        session = await w.open("mine")
        w.registry.pools["other"] = w.pool  # type: ignore[index]
        with pytest.raises(Conflict, match="mine"):
            await w.open("mine", template="other")
        assert w.registry.list() == [session]


async def test_environment_is_delivered_before_any_cell(backend: FakeBackend) -> None:
    """The session's environment reaches the kernel as data before any of its cells."""
    async with world(backend) as w:
        await w.open(env={"A": "'; import os"}, cwd="sub dir")
        cells = [c for s in backend.live.values() for c in s.gateway.cells]
        (cell,) = [c for c in cells if c.code == CONFIGURE_CODE]
        asked = cell.metadata[METADATA_KEY]["configure"]
        assert asked == {"env": {"A": "'; import os"}, "cwd": "sub dir"}


@pytest.mark.parametrize(
    ("closing", "told"),
    [
        (("sdk", "bot"), "its client closed it"),
        (("rest", "ann"), "its client closed it"),
        (
            ("console", "ann"),
            r"ann closed it in the console on 20\d\d-\d\d-\d\d at \d\d:\d\d:\d\d UTC",
        ),
        (("console", ""), "somebody closed it in the console on"),
    ],
)
async def test_who_has_closed_a_session_is_told(
    backend: FakeBackend, closing: tuple[str, str], told: str
) -> None:
    """A program learns that a person has closed its session, who, and when."""
    async with world(backend) as w:
        set_origin("sdk", "bot")
        session = await w.open("mine")
        set_origin(*closing)
        await w.service.sessions.close("mine")
        with pytest.raises(SessionGone, match=told):
            w.service.executions.submit(session, ExecutionRequest(code="1"))


async def test_too_many_secrets_are_refused(backend: FakeBackend) -> None:
    """A session with more secrets than can be masked in good time is refused with the limit."""
    async with world(backend) as w:
        with pytest.raises(BadRequest, match="2,000 lines"):
            await w.open("mine", secrets={"KEY": "\n" * 2001})
        assert w.registry.list() == []


async def test_a_refused_environment_leaves_no_session(backend: FakeBackend) -> None:
    """An environment that the kernel refuses gives an error, and leaves neither session nor lease."""

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


async def test_opening_without_a_sandbox_fails(backend: FakeBackend) -> None:
    """Without a sandbox in time there is no session, and the number of waiters is limited."""
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


async def test_a_cancelled_open_leaves_nothing(backend: FakeBackend) -> None:
    """An open that is cancelled at any moment leaves neither session nor lease, and its id is free."""
    async with world(backend) as w:
        options = SessionOptions(session_id="mine", env={"A": "1"})
        ended = False
        count = 0
        while not ended:
            await until(lambda: w.pool.status().idle_containers)
            opening = asyncio.create_task(w.registry.open(options))
            await turns(count)
            ended = opening.done()
            count += 1
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                session, _ = await opening
                await session.close("it was opened after all")
            await until(lambda: w.pool.status().busy_containers == 0)
            await until(lambda: not w.registry.list())
            assert w.registry._opening == {}
        assert count > 5


async def test_two_openers_of_which_one_is_cancelled_as_both_wake(backend: FakeBackend) -> None:
    """An opener that is cancelled in the turn in which both wake closes nothing of the other's."""
    async with world(backend, pool=PoolLimits(0, 3)) as w:
        cancelled_late = 0
        for number in range(3):
            options = SessionOptions(session_id=f"mine{number}")
            first = asyncio.create_task(w.registry.open(options))
            second = asyncio.create_task(w.registry.open(options))
            await turns(2)
            opening = w.registry._opening[f"mine{number}"].task

            def cancel(_: object, second: asyncio.Task[object] = second) -> None:
                nonlocal cancelled_late
                cancelled_late += second.cancel()

            # Called behind the callbacks that wake both, in the same turn.
            opening.add_done_callback(cancel)
            async with asyncio.timeout(DEADLINE_S):
                session, is_new = await first
            assert is_new
            with contextlib.suppress(asyncio.CancelledError):
                await second
            await turns(20)
            assert session.closed_reason is None
            assert (await result_of(submit(session))).success
            await session.close("done")
        assert cancelled_late


async def test_a_session_that_nobody_received_leaves_its_id_free(backend: FakeBackend) -> None:
    """A client that goes away in the moment in which its session is open gets another on its return."""
    async with world(backend) as w:
        options = SessionOptions(session_id="mine")
        leaving = asyncio.create_task(w.registry.open(options))
        await turns(2)
        opening = w.registry._opening["mine"].task
        opening.add_done_callback(lambda _: leaving.cancel())
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert opening.result()
        session, is_new = await w.registry.open(options)
        assert is_new
        assert session is not opening.result()
        assert (await result_of(submit(session))).success
        assert opening.result().closed_reason is not None
        assert w.registry.list() == [session]


async def test_an_opening_continues_for_the_other_caller(backend: FakeBackend) -> None:
    """A session that another caller waits for is opened."""
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
async def test_a_client_that_returns_at_once_gets_a_session(
    backend: FakeBackend, count: int
) -> None:
    """A client that disconnects during an opening and returns gets a session with that id."""
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


async def test_closed_sessions_report_the_reason(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed session reports the reason; after an hour its id is unknown."""
    async with world(backend) as w:
        session = await w.open("mine")
        await session.close("its client closed it")
        with pytest.raises(SessionGone, match="its client closed it"):
            w.registry.get("mine")
        assert w.registry.list() == []
        monkeypatch.setattr(gone_module, "_REMEMBERED_S", -1.0)
        with pytest.raises(NotFound):
            w.registry.get("mine")


async def test_the_id_of_an_ended_session_is_free(backend: FakeBackend) -> None:
    """Opening always opens: a session and a context whose id has ended are new ones."""
    async with world(backend) as w:
        for reason in ("first", "second"):
            session = await w.open("mine")
            options = SessionOptions(context_of="mine", session_id="helper")
            context, is_new = await w.registry.open(options)
            assert is_new
            assert (await result_of(submit(context))).success
            await context.close(reason)
            with pytest.raises(SessionGone, match=reason):
                w.registry.get("helper")
            await session.close(reason)
            with pytest.raises(SessionGone, match=reason):
                w.registry.get("mine")
        again = await w.open("mine")
        assert w.registry.get("mine") is again
        assert (await result_of(submit(again))).success


async def test_remembered_sessions_are_bounded(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of remembered closed sessions is limited."""
    monkeypatch.setattr(gone_module, "_REMEMBERED_MAX", 2)
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
    """An idle session is closed, and the reason says so."""
    monkeypatch.setattr(tenant_service, "_SWEEP_S", 0.01)
    async with world(backend, idle_timeout=0.05) as w:
        session = await w.open("mine")
        assert "idle for 0.05 s" in await closed(session)
        with pytest.raises(SessionGone, match="idle"):
            w.registry.get("mine")
        await until(lambda: w.pool.status().busy_containers == 0)


async def test_wall_clock_changes_close_no_session(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed wall clock closes and forgets no session; elapsed time does."""
    monkeypatch.setattr(tenant_service, "_SWEEP_S", 0.01)
    now = 1000.0
    async with world(backend, admission=Admission(50, 100, lambda: now)) as w:
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
    monkeypatch.setattr(tenant_service, "_SWEEP_S", 0.01)
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open(idle_timeout=0.5)
        execution = submit(session, "wait", timeout=1.5)
        result = await result_of(execution)
        assert result.error_detail is not None
        assert result.error_detail.cause == "timeout"
        assert "idle" in await closed(session)


async def test_a_session_ends_with_its_lifetime(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session ends with its lifetime, even if a cell runs."""
    monkeypatch.setattr(tenant_service, "_SWEEP_S", 0.01)
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open(max_lifetime=0.1)
        execution = submit(session, "wait")
        await running(execution)
        assert "lifetime of 0.1 s" in await closed(session)
        result = await result_of(execution)
        assert "lifetime of 0.1 s" in (result.error or "")


async def test_durations_are_capped(backend: FakeBackend) -> None:
    """Durations of a session are capped at the limit."""
    async with world(backend, max_lifetime=100, idle_timeout=50) as w:
        session = await w.open(max_lifetime=1e9, idle_timeout=1e9)
        assert (session.max_lifetime, session.idle_timeout) == (100, 100)
        session = await w.open()
        assert (session.max_lifetime, session.idle_timeout) == (100, 50)


async def test_an_ephemeral_session_ends_with_its_block(backend: FakeBackend) -> None:
    """A session for one execution is closed with its block, however the block ends."""
    async with world(backend) as w:
        with pytest.raises(ZeroDivisionError):
            request = ExecutionRequest(code="pass")
            async with w.service.executions.execute(request, Target()) as submitted:
                assert (await result_of(submitted.log)).success
                raise ZeroDivisionError
        await until(lambda: w.pool.status().busy_containers == 0)
        assert w.registry.list() == []


async def stop(w: World) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await w.registry.stop("closing time")


async def test_stop_closes_every_session(backend: FakeBackend) -> None:
    """A stopped registry closes every session with the reason, and opens no new one."""
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


async def test_drain_closes_idle_sessions_first(backend: FakeBackend) -> None:
    """Idle sessions are closed at once, the others when their executions and transfers have ended."""
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend, pool=PoolLimits(min_size=1, max_size=3)) as w:
        idle, busy, borrowed = await w.open("idle"), await w.open("busy"), await w.open("borrowed")
        executions = [submit(busy, "hold"), submit(busy)]
        await hold.reached()
        waits = asyncio.create_task(w.open("fourth"))
        await until(lambda: w.pool.status().pending_requests)
        async with borrowed.borrow():
            draining = asyncio.create_task(w.tenants.drain("closing time"))
            with pytest.raises(Unavailable) as refused:
                await waits
            assert refused.value.retry_after
            assert await closed(idle) == "closing time"
            with pytest.raises(SessionGone, match="closing time"):
                w.registry.get("idle")
            for refusing in (lambda: submit(busy), lambda: submit(borrowed)):
                with pytest.raises(Unavailable) as refused:
                    refusing()
                assert refused.value.retry_after
            await turns(20)
            assert w.registry.list() == [busy, borrowed]
            assert await w.open("busy") is busy  # whose client may have lost its connection
        assert await closed(borrowed) == "closing time"
        hold.go_on.set()
        assert [(await result_of(execution)).success for execution in executions] == [True, True]
        assert await closed(busy) == "closing time"
        async with asyncio.timeout(DEADLINE_S):
            await draining
        with pytest.raises(Unavailable):
            await w.open()


@pytest.mark.parametrize("leave", [True, False], ids=["left", "closed after all"])
async def test_drain_leaves_sessions(backend: FakeBackend, leave: bool) -> None:
    """Sessions that can go on are left with their sandbox, others closed; a stop may close them, too."""
    spec = SandboxSpec(orphan_grace=60)
    async with world(backend, pool=PoolLimits(min_size=0, max_size=3), spec=spec) as w:
        idle, hidden = await w.open("idle"), await w.open("hidden", secrets={"KEY": "a value"})
        async with asyncio.timeout(DEADLINE_S):
            await w.tenants.drain("closing time", leave=True)
            assert await closed(hidden) == "closing time"
        assert idle.is_left
        assert w.registry.get("idle") is idle
        with pytest.raises(Unavailable) as refused:
            idle.expect_open()
        assert refused.value.retry_after
        await w.tenants.stop("closing time", leave=leave)
        if leave:
            await w.pool.leave(DEADLINE_S)
            assert not idle.closed.done()
            assert len(backend.live) == 1
        else:
            assert await closed(idle) == "closing time"
            await until(lambda: not backend.live)


async def test_a_cell_with_secrets_ends_before_its_session_is_left(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next broker could not go on with it, since secrets are not stored. Others are left at once."""
    monkeypatch.setattr(registry, "_LEAVE_S", 0.0)
    hold = Breakpoint()
    backend.scripts |= {"hold": hold, "wait": interruptible}
    spec = SandboxSpec(orphan_grace=60)
    async with world(backend, pool=PoolLimits(min_size=0, max_size=3), spec=spec) as w:
        plain, secret = await w.open("plain"), await w.open("secret")
        plain_log = submit(plain, "wait")
        await until(lambda: plain_log.state == "running")
        execution = submit(secret, "hold", secrets={"KEY": "hidden value"})
        await hold.reached()
        draining = asyncio.create_task(w.tenants.drain("closing time", leave=True))
        await until(lambda: plain.is_left)
        assert not secret.is_left
        hold.go_on.set()
        assert (await result_of(execution)).success
        async with asyncio.timeout(DEADLINE_S):
            await draining
        assert secret.is_left
        await w.tenants.stop("closing time", leave=True)
        await w.pool.leave(DEADLINE_S)


async def test_stop_ends_a_drain(backend: FakeBackend) -> None:
    """A stop during a drain ends the running cells."""
    backend.scripts["wait"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        execution = submit(session, "wait")
        await running(execution)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await w.tenants.drain("closing time")
        assert session.closed_reason is None
        await stop(w)
        assert (await result_of(execution)).error == "SessionClosed: closing time"


@pytest.mark.parametrize("count", MOMENTS)
async def test_drain_refuses_an_opening(backend: FakeBackend, count: int | None) -> None:
    """A session that is being opened during a drain is refused, or closed like the others."""
    async with world(backend) as w:
        await until(lambda: w.pool.status().idle_containers)
        opening = asyncio.create_task(w.registry.open(SessionOptions(env={"A": "1"})))
        await moment(count, opening.done)
        async with asyncio.timeout(DEADLINE_S):
            await w.tenants.drain("closing time")
        with contextlib.suppress(Unavailable):
            session, _ = await opening
            assert session.closed_reason == "closing time"
        assert w.registry.list() == []
        await until(lambda: w.pool.status().busy_containers == 0)


@pytest.mark.parametrize("count", MOMENTS)
async def test_stop_refuses_an_opening(backend: FakeBackend, count: int | None) -> None:
    """A session that is being opened during a stop leaves nothing, and its client gets the reason."""
    async with world(backend) as w:
        await until(lambda: w.pool.status().idle_containers)
        opening = asyncio.create_task(w.registry.open(SessionOptions(env={"A": "1"})))
        await moment(count, opening.done)
        await stop(w)
        with contextlib.suppress(Unavailable):
            session, _ = await opening
            assert session.closed_reason == "closing time"
        await until(lambda: w.pool.status().busy_containers == 0)


async def test_expiry_goes_on_after_an_unexpected_error(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sweep that fails is logged, and a later one closes the session."""
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.0,))
    monkeypatch.setattr(tenant_service, "_SWEEP_S", 0.01)
    close_expired, errors = Registry.close_expired, [RuntimeError("unexpected")]

    def fail_once(registry: Registry) -> None:
        if errors:
            raise errors.pop()
        close_expired(registry)

    monkeypatch.setattr(Registry, "close_expired", fail_once)
    async with world(backend, idle_timeout=0.05) as w:
        session = await w.open()
        async with asyncio.timeout(DEADLINE_S):
            await session.closed
        assert not errors
    assert "the background task 'session expiry' failed" in caplog.text


async def test_one_task_sweeps_all_tenants(backend: FakeBackend) -> None:
    """Another tenant adds no task."""
    async with world(backend) as w:
        await until(lambda: w.pool.status().idle_containers)
        before = len(asyncio.all_tasks())
        for number in range(50):
            w.tenants.of(Tenant(f"{number}"))
        await turns(5)
        assert len(asyncio.all_tasks()) == before


async def test_a_failing_sweep_does_not_keep_the_sessions_of_other_tenants_open(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the sweep of one tenant always fails, sessions of later tenants still expire."""
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.0,))
    monkeypatch.setattr(tenant_service, "_SWEEP_S", 0.01)
    close_expired = Registry.close_expired

    async with world(backend, idle_timeout=0.05) as w:

        def fail_for_the_first_tenant(registry: Registry) -> None:
            if registry is w.registry:
                raise RuntimeError("unexpected")
            close_expired(registry)

        monkeypatch.setattr(Registry, "close_expired", fail_for_the_first_tenant)
        later = w.tenants.of(Tenant("later"))
        session, _ = await later.registry.open(SessionOptions())
        async with asyncio.timeout(DEADLINE_S):
            await session.closed
    assert "RuntimeError: unexpected" in caplog.text
