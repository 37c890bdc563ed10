"""The pool with a backend of scripted gateways: leases, failures, cancellation, shutdown."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernelbroker_server import supervisor as supervisor_module
from kernelbroker_server.backends.base import EndCause, LaunchError, SandboxEnd, SandboxSpec
from kernelbroker_server.kernels.gateway import GatewayConnection
from kernelbroker_server.pool import runner, state
from kernelbroker_server.pool import warm_sandbox as warm_module
from kernelbroker_server.pool.own_sandboxes import LaunchFailed
from kernelbroker_server.pool.runner import AcquireTimeout, Pool, PoolClosed
from kernelbroker_server.pool.state import PoolFull, PoolLimits
from kernelbroker_server.pool.status import LaunchFailure, PoolStatus
from kernelbroker_server.supervisor import Supervisor

from tests.support.backend import FakeBackend, FakeSandbox, fake_backend
from tests.support.gateway import Cell, CellFailed
from tests.support.waiting import DEADLINE_S, broker_tasks, turns, until

STOP_S = 5.0


def make(
    backend: FakeBackend,
    min_size: int = 1,
    max_size: int = 3,
    max_waiters: int = 3,
    max_launches: int = 2,
    **options: Any,
) -> Pool:
    limits = PoolLimits(min_size, max_size, max_waiters, max_launches)
    return Pool(backend, SandboxSpec(), limits, **options)


@asynccontextmanager
async def running(backend: FakeBackend, **options: Any) -> AsyncIterator[Pool]:
    """A pool that has filled itself. It is stopped and checked at the end."""
    pool = make(backend, **options)
    pool.start()
    limits = pool._state.limits
    await until(lambda: pool.status().idle_containers == min(limits.min_size, limits.max_size))
    try:
        yield pool
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await pool.stop(STOP_S)
        check(pool)


def check(pool: Pool) -> None:
    """The invariants of a pool, which hold at any moment."""
    pool._state.validate_state()
    assert pool.status().pending_requests == pool._state.waiters


def shorten_end_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_module, "END_GRACE_S", 0.01)


def fail(reason: str = "no luck") -> Callable[[FakeSandbox], Any]:
    async def launch(_sandbox: FakeSandbox) -> None:
        raise LaunchError(reason)

    return launch


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_TICK_S", 0.0)
    monkeypatch.setattr(state, "_BACKOFF_S", (0.0,))


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(runner, "_TICK_S", 0.0)
    return Clock()


async def test_fills_in_the_background(backend: FakeBackend) -> None:
    """A pool fills in the background, and replaces leased sandboxes."""
    async with running(backend, min_size=2, max_size=4) as pool:
        assert pool.status() == PoolStatus(2, 2, 0, 0, 0)
        warm = await pool.acquire(timeout=1)
        await until(lambda: pool.status().idle_containers == 2)
        assert pool.status() == PoolStatus(3, 2, 1, 0, 0)
        pool.release(warm)
        await until(lambda: pool.status().total_containers == 2)
        assert warm.sandbox.id not in backend.live


async def test_a_warm_lease_does_not_yield(backend: FakeBackend) -> None:
    """Leasing a warm sandbox takes no turn of the event loop."""
    async with running(backend) as pool:
        acquiring = pool.acquire(timeout=1)
        with pytest.raises(StopIteration) as stop:
            acquiring.send(None)
        warm = stop.value.value
        assert warm.alive
        pool.release(warm)


async def test_a_warm_kernel_has_run_a_cell(backend: FakeBackend) -> None:
    """A leased kernel has run a cell, and messages before the session subscribes are dropped."""
    async with running(backend) as pool:
        warm = await pool.acquire(timeout=1)
        cells = backend.live[warm.sandbox.id].gateway.cells
        assert [cell.content["silent"] for cell in cells] == [True]
        pool.release(warm)


async def test_a_sandbox_is_never_leased_twice(backend: FakeBackend) -> None:
    """No sandbox is leased a second time, nor to two callers at once."""
    async with running(backend, min_size=1, max_size=2) as pool:
        seen = set()
        for _ in range(5):
            pair = await asyncio.gather(*(pool.acquire(timeout=DEADLINE_S) for _ in range(2)))
            for warm in pair:
                assert warm.sandbox.id not in seen
                seen.add(warm.sandbox.id)
                pool.release(warm)
        assert len(seen) == 10


async def test_waiters_are_served_in_order(backend: FakeBackend) -> None:
    """The caller that waits longest is served first, after urgent ones."""
    async with running(backend, min_size=0, max_size=1) as pool:
        order: list[str] = []

        async def lease(name: str, *, urgent: bool = False) -> None:
            warm = await pool.acquire(timeout=DEADLINE_S, urgent=urgent)
            order.append(name)
            pool.release(warm)

        first = await pool.acquire(timeout=DEADLINE_S)
        tasks = [asyncio.create_task(lease(name)) for name in "abc"]
        await turns(1)
        tasks.append(asyncio.create_task(lease("urgent", urgent=True)))
        await turns(1)
        with pytest.raises(PoolFull):
            await pool.acquire(timeout=1)
        pool.release(first)
        await asyncio.gather(*tasks)
        assert order == ["urgent", "a", "b", "c"]


async def test_an_evicted_waiter_is_refused_at_once(backend: FakeBackend) -> None:
    """A waiter that makes room for a tenant with fewer waiters raises PoolFull at once."""
    async with running(backend, min_size=0, max_size=1) as pool:

        async def lease(tenant: str) -> str:
            pool.release(await pool.acquire(timeout=DEADLINE_S, tenant=tenant))
            return tenant

        first = await pool.acquire(timeout=DEADLINE_S)
        many = [asyncio.create_task(lease("many")) for _ in range(3)]
        await turns(1)
        one = asyncio.create_task(lease("one"))
        with pytest.raises(PoolFull):
            await many.pop()
        pool.release(first)
        assert await asyncio.gather(one, *many) == ["one", "many", "many"]


async def test_acquire_times_out(backend: FakeBackend) -> None:
    """A caller that waits too long raises AcquireTimeout, and a later sandbox is not lost."""
    async with running(backend, min_size=0, max_size=1) as pool:
        first = await pool.acquire(timeout=DEADLINE_S)
        with pytest.raises(AcquireTimeout, match="busy"):
            await pool.acquire(timeout=0.01)
        assert pool.status().pending_requests == 0
        pool.release(first)
        second = await pool.acquire(timeout=DEADLINE_S)
        pool.release(second)


@pytest.mark.usefixtures("no_pause")
async def test_failed_launches_are_logged_and_tried_again(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures are logged and tried again until a launch succeeds."""
    failures = iter(["the first", "the second"])

    async def launch(_sandbox: FakeSandbox) -> None:
        for reason in failures:
            raise LaunchError(reason)

    backend.on_launch = launch
    async with running(backend, min_size=1, max_launches=1) as pool:
        assert backend.launched == 3
        assert pool.last_failure == ""
    assert "the first" in caplog.text
    assert "the second" in caplog.text


async def test_launches_pause_after_a_failure(backend: FakeBackend, clock: Clock) -> None:
    """A pool tries again when its pause is over, not before, and shows both meanwhile."""
    backend.on_launch = fail()
    pool = make(backend, max_launches=1, clock=clock)
    pool.start()
    await until(lambda: pool.last_failure)
    details = pool.details()
    assert (details.last_launch_failure, details.failed_launches) == ("no luck", 1)
    assert details.back_off_s == 0.5
    backend.on_launch = None
    clock.now += 0.4
    await until(lambda: pool.details().back_off_s < 0.5)
    assert backend.launched == 1
    clock.now += 0.2
    await until(lambda: pool.status().idle_containers == 1)
    assert pool.details().last_launch_failure is None
    await pool.stop(STOP_S)


async def test_a_pool_that_keeps_none_free_is_ready_unless_launches_fail(
    backend: FakeBackend, clock: Clock
) -> None:
    """It is not ready during the pause after a failure, and ready for the next try."""
    backend.on_launch = fail()
    pool = make(backend, min_size=0, clock=clock)
    pool.start()
    assert pool.ready
    waiting = asyncio.create_task(pool.acquire(timeout=DEADLINE_S))
    await until(lambda: pool.last_failure)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not pool.ready
    clock.now += 0.6
    await until(lambda: pool.ready)
    await pool.stop(STOP_S)


async def test_a_timeout_has_the_reason_of_failed_launches(backend: FakeBackend) -> None:
    """AcquireTimeout has the reason of the latest failed launch."""
    backend.on_launch = fail("the disk is full")
    pool = make(backend)
    pool.start()
    with pytest.raises(AcquireTimeout, match="the disk is full"):
        await pool.acquire(timeout=0.05)
    await pool.stop(STOP_S)


async def ends_at_once(sandbox: FakeSandbox) -> None:
    await sandbox.die(detail="no python here")


async def tells_why(sandbox: FakeSandbox) -> None:
    sandbox.ended.set_result(SandboxEnd(EndCause.KERNEL_DIED, "status 1", "no such module"))
    await sandbox.die()


async def refuses(sandbox: FakeSandbox) -> None:
    async def closes(_handler: Any) -> None:
        await sandbox.gateway.stop()

    sandbox.gateway.on_channel = closes


async def surprises(_sandbox: FakeSandbox) -> None:
    raise ZeroDivisionError("what nobody foresaw")


async def dies_while_warming(sandbox: FakeSandbox) -> None:
    async def die(cell: Cell) -> None:
        cell.kernel.spawn(asyncio.shield(asyncio.ensure_future(sandbox.die(detail="it choked"))))
        await asyncio.Event().wait()

    sandbox.gateway.scripts = {"pass": die}


async def fails_its_first_cell(sandbox: FakeSandbox) -> None:
    async def broken(_cell: Cell) -> None:
        raise CellFailed("ImportError", "no pandas")

    sandbox.gateway.scripts = {"pass": broken}


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(
    ("launch", "told"),
    [
        (ends_at_once, "no python here"),
        (tells_why, "ended at once: status 1: no such module"),
        (refuses, "closed the channel"),
        (surprises, "what nobody foresaw"),
        (dies_while_warming, "closed the channel"),
        (fails_its_first_cell, "no pandas"),
    ],
)
async def test_a_sandbox_that_does_not_become_warm_is_removed(
    backend: FakeBackend, launch: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that does not become warm is removed, the reason is shown, and another one is launched."""
    shorten_end_grace(monkeypatch)
    backend.on_launch = launch
    pool = make(backend, max_launches=1)
    pool.start()
    await until(lambda: pool.last_failure)
    assert told in pool.last_failure
    backend.on_launch = None
    warm = await pool.acquire(timeout=DEADLINE_S)
    pool.release(warm)
    await pool.stop(STOP_S)


@pytest.mark.usefixtures("no_pause")
async def test_a_launch_times_out(backend: FakeBackend) -> None:
    """A sandbox that is not warm within the launch timeout is removed."""

    async def silent(sandbox: FakeSandbox) -> None:
        async def never() -> None:
            await asyncio.Event().wait()

        sandbox.gateway.on_start = never

    backend.on_launch = silent
    pool = make(backend, launch_timeout=0.05)
    pool.start()
    await until(lambda: pool.last_failure)
    assert "0.05 s" in pool.last_failure
    await pool.stop(STOP_S)


@pytest.mark.parametrize("how", ["sandbox ends", "channel closes"])
async def test_a_dead_sandbox_is_replaced(backend: FakeBackend, how: str) -> None:
    """A warm sandbox that dies is replaced and never leased."""
    async with running(backend, min_size=1) as pool:
        (dead,) = backend.live.values()
        if how == "sandbox ends":
            await dead.die()
        else:
            await dead.gateway.stop()
        await until(lambda: dead.id not in backend.live)
        warm = await pool.acquire(timeout=DEADLINE_S)
        assert warm.alive
        assert warm.sandbox.id != dead.id
        pool.release(warm)


async def test_a_sandbox_that_ended_in_this_turn_is_not_leased(backend: FakeBackend) -> None:
    """A sandbox is not leased in the turn of the event loop in which it ended."""
    async with running(backend, min_size=1) as pool:
        (dead,) = backend.live.values()
        dead.ended.set_result(SandboxEnd(EndCause.OUT_OF_MEMORY, "gone"))
        warm = await pool.acquire(timeout=DEADLINE_S)
        assert warm.sandbox.id != dead.id
        pool.release(warm)


async def test_a_leased_sandbox_that_dies_stays_leased(backend: FakeBackend) -> None:
    """A leased sandbox that dies stays with its session until the release; the cause is known."""
    async with running(backend) as pool:
        warm = await pool.acquire(timeout=1)
        await backend.live[warm.sandbox.id].die(EndCause.OUT_OF_MEMORY, "too big")
        async with asyncio.timeout(DEADLINE_S):
            assert (await warm.end()).cause is EndCause.OUT_OF_MEMORY
        assert pool.status().busy_containers == 1
        pool.release(warm)


async def test_a_sandbox_whose_channel_closes_is_lost(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that runs on without its channel is lost."""
    shorten_end_grace(monkeypatch)
    async with running(backend) as pool:
        warm = await pool.acquire(timeout=1)
        await backend.live[warm.sandbox.id].gateway.stop()
        async with asyncio.timeout(DEADLINE_S):
            assert (await warm.end()).cause is EndCause.SANDBOX_LOST
        assert not warm.alive
        pool.release(warm)


# Checks of those that are idle.


async def deaf(_cell: Cell) -> None:
    await asyncio.Event().wait()


async def dies_when_asked(cell: Cell) -> None:
    cell.kernel.spawn(asyncio.shield(asyncio.ensure_future(cell.kernel.stop())))
    await asyncio.Event().wait()


async def test_a_healthy_sandbox_stays(backend: FakeBackend, clock: Clock) -> None:
    """A sandbox that passes its check is leased as any other."""
    async with running(backend, clock=clock) as pool:
        (healthy,) = backend.live.values()
        clock.now += 20
        await until(lambda: len(healthy.gateway.cells) == 2)
        warm = await pool.acquire(timeout=DEADLINE_S)
        assert warm.sandbox.id == healthy.id
        assert warm.channel.subscriptions == 0
        pool.release(warm)


@pytest.mark.parametrize("how", ["deaf", "dies", "too much memory", "surprises", "no telling"])
async def test_an_unhealthy_sandbox_is_replaced(
    backend: FakeBackend, clock: Clock, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that does not answer, dies, or has filled its memory is replaced and never leased."""
    monkeypatch.setattr(warm_module, "_CHECK_TIMEOUT_S", 0.2)
    async with running(backend, clock=clock) as pool:
        (sick,) = backend.live.values()
        if how in ("deaf", "dies"):
            sick.gateway.scripts = {"pass": deaf if how == "deaf" else dies_when_asked}
        elif how == "surprises":
            monkeypatch.setattr(sick, "memory", None)
        else:
            limit = SandboxSpec().limits.memory
            sick.memory_used = limit * 91 // 100 if how == "too much memory" else None
        clock.now += 20
        await until(lambda: len(sick.gateway.cells) == 2)
        warm = await pool.acquire(timeout=DEADLINE_S)
        assert (warm.sandbox.id == sick.id) == (how == "no telling")
        pool.release(warm)


async def test_stop_does_not_wait_for_a_check(backend: FakeBackend, clock: Clock) -> None:
    """A pool that is stopped does not wait for the answer of a check."""
    async with running(backend, clock=clock) as pool:
        (sick,) = backend.live.values()
        sick.gateway.scripts = {"pass": deaf}
        clock.now += 20
        await until(lambda: len(sick.gateway.cells) == 2)
        assert pool.status().idle_containers == 1  # as seen from outside


async def test_an_old_sandbox_is_replaced(backend: FakeBackend, clock: Clock) -> None:
    """A sandbox that was not leased for too long is replaced, and the pool is never empty."""
    async with running(backend, clock=clock) as pool:
        (old,) = backend.live.values()
        clock.now += 4000
        while old.id in backend.live:
            assert pool.status().idle_containers
            await asyncio.sleep(0)
        assert pool.status().idle_containers == 1


# Cancellation, at every await.


async def cancelled_after(work: Any, count: int) -> asyncio.Task[Any]:
    """Run so many turns of the loop, then cancel."""
    task = asyncio.ensure_future(work)
    await turns(count)
    task.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([task])
    return task


@pytest.mark.parametrize("min_size", [0, 1])
async def test_a_cancelled_acquire_leaks_nothing(backend: FakeBackend, min_size: int) -> None:
    """An acquire that is cancelled at any turn of the loop leaks neither sandbox nor waiter."""
    finished = 0
    for count in range(400):
        pool = make(backend, min_size=min_size, max_size=2)
        pool.start()
        task = await cancelled_after(pool.acquire(timeout=DEADLINE_S), count)
        check(pool)
        assert pool.status().pending_requests == 0
        if not task.cancelled():
            pool.release(task.result())
            finished += 1
        assert pool.status().busy_containers == 0
        async with asyncio.timeout(DEADLINE_S):
            await pool.stop(STOP_S)
        assert backend.live == {}
        if finished == 5:
            break
    assert finished == 5


async def test_a_sandbox_assigned_to_a_cancelled_caller_is_given_back(backend: FakeBackend) -> None:
    """A sandbox that was assigned in the turn in which its caller was cancelled is released."""
    async with running(backend, min_size=0, max_size=1) as pool:
        first = await pool.acquire(timeout=DEADLINE_S)
        leaving = asyncio.create_task(pool.acquire(timeout=DEADLINE_S))
        await turns(2)
        (future,) = pool._waiters.values()
        future.add_done_callback(lambda _: leaving.cancel())
        pool.release(first)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait([leaving])
        assert leaving.cancelled()
        assert not future.cancelled()
        assert pool.status().busy_containers == 0
        third = await pool.acquire(timeout=DEADLINE_S)
        pool.release(third)


async def test_a_pool_stopped_during_launches_leaves_nothing(backend: FakeBackend) -> None:
    """A pool that is stopped at any turn of its launches stops at once and leaves nothing."""
    warm_at_the_end = 0
    for count in range(400):
        pool = make(backend, min_size=2, max_size=2)
        pool.start()
        await turns(count)
        idle = pool.status().idle_containers
        before = time.monotonic()
        await pool.stop(STOP_S)
        assert time.monotonic() - before < STOP_S / 2
        check(pool)
        assert pool.status().total_containers == 0
        assert backend.live == {}
        await turns(5)
        assert broker_tasks() == set()
        warm_at_the_end += idle == 2
        if warm_at_the_end == 5:
            break
    assert warm_at_the_end == 5


async def test_a_cancelled_launch_leaves_no_connection(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that is cancelled anywhere leaves no open channel, also if the gateway runs on."""
    left: list[FakeSandbox] = []

    async def remove(sandbox: Any) -> None:
        if backend.live.pop(sandbox.id, None):
            left.append(sandbox)

    monkeypatch.setattr(backend, "remove", remove)
    warm_at_the_end = count = 0
    while warm_at_the_end < 3:
        pool = make(backend, min_size=1, max_size=1)
        pool.start()
        await turns(count)
        warm_at_the_end += pool.status().idle_containers
        await pool.stop(STOP_S)
        count += 1
    await turns(10)
    assert broker_tasks() == set()
    await until(lambda: not any(sandbox.gateway.channels for sandbox in left))
    for sandbox in left:
        await sandbox.gateway.stop()
        shutil.rmtree(sandbox.directory)


# The end.


async def test_stop_refuses_waiters(backend: FakeBackend) -> None:
    """Callers that wait when the pool is stopped, and later ones, raise PoolClosed."""
    pool = make(backend, min_size=0, max_size=1)
    first = await pool.acquire(timeout=DEADLINE_S)
    waiting = asyncio.create_task(pool.acquire(timeout=DEADLINE_S))
    await turns(2)
    stopping = asyncio.create_task(pool.stop(STOP_S))
    with pytest.raises(PoolClosed):
        await waiting
    with pytest.raises(PoolClosed):
        await pool.acquire(timeout=1)
    assert not stopping.done()
    pool.release(first)
    async with asyncio.timeout(DEADLINE_S):
        await stopping
    assert backend.live == {}


async def test_stop_is_bounded(backend: FakeBackend) -> None:
    """A lease that is not released delays the end of a stop no longer than its timeout."""
    pool = make(backend)
    pool.start()
    warm = await pool.acquire(timeout=DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        await pool.stop(0.05)
    assert pool.status().busy_containers == 1
    pool.release(warm)
    await until(lambda: not backend.live)


async def test_stop_twice_does_no_harm(backend: FakeBackend) -> None:
    """Stopping a pool again, or one that was never started, does no harm."""
    pool = make(backend)
    await pool.stop(STOP_S)
    await pool.stop(STOP_S)
    async with running(backend) as other:
        await other.stop(STOP_S)


async def test_stop_during_the_pause_after_a_failure(backend: FakeBackend, clock: Clock) -> None:
    """A pool that waits to try again stops at once and tries no more."""
    backend.on_launch = fail()
    pool = make(backend, clock=clock)
    pool.start()
    await until(lambda: pool.last_failure)
    launched = backend.launched
    await pool.stop(STOP_S)
    clock.now += 100
    await turns(10)
    assert backend.launched == launched


async def test_a_cancelled_removal_is_completed() -> None:
    """A sandbox that is being removed is removed completely, also if the task is cancelled."""
    async with fake_backend() as backend:
        pool = make(backend)
        pool.start()
        warm = await pool.acquire(timeout=DEADLINE_S)
        pool.release(warm)
        await turns(1)
        await pool.stop(0)
        await until(lambda: warm.sandbox.id not in backend.live)
        await until(lambda: not backend.live)


async def test_the_clock_goes_on_after_an_unexpected_error(
    backend: FakeBackend, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A failing tick is logged and shown, and the pool goes on to check and replace its sandboxes."""
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.0,))
    supervisor = Supervisor()
    async with running(backend, supervisor=supervisor, clock=clock, min_size=1) as pool:
        tick, errors = pool._state.tick, [RuntimeError("unexpected")]

        def fail_once(now: float) -> list[state.Action]:
            if errors:
                raise errors.pop()
            return tick(now)

        monkeypatch.setattr(pool._state, "tick", fail_once)
        await until(lambda: supervisor.failing())
        assert supervisor.failing()[0].last_error == "RuntimeError: unexpected"
        first = set(backend.live)
        clock.now += pool._state.limits.container_ttl + 1
        await until(lambda: backend.live and not first & set(backend.live))
    assert "pool clock of default" in caplog.text
    assert supervisor.status() == []


async def test_launch_failure_has_the_time_of_the_first_failure(
    backend: FakeBackend, no_pause: None
) -> None:
    """It has the latest reason and the time of the first failure, until a launch succeeds."""
    reasons = iter(["first", "second"])

    async def launch(_sandbox: FakeSandbox) -> None:
        if (reason := next(reasons, None)) is not None:
            raise LaunchError(reason)

    backend.on_launch = launch
    pool = make(backend, max_launches=1)
    seen = []
    before = time.time()
    pool.start()
    try:
        await until(lambda: pool.launch_failure is not None)
        seen.append(pool.launch_failure)
        await until(lambda: pool.launch_failure != seen[0])
        seen.append(pool.launch_failure)
        await until(lambda: pool.status().idle_containers)
        assert pool.launch_failure is None
    finally:
        await pool.stop(STOP_S)
    first, second = seen
    assert first is not None
    assert before <= first.since <= time.time()
    assert first == LaunchFailure("first", first.since, 1)
    assert second == LaunchFailure("second", first.since, 2)


async def test_a_sandbox_is_removed_although_its_gateway_cannot_be_closed(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of one step of a removal does not skip the next one."""

    async def fail(_gateway: object) -> None:
        raise OSError("the connection cannot be closed")

    async with running(backend) as pool:
        warm = await pool.acquire(timeout=1)
        with monkeypatch.context() as patched:
            patched.setattr(GatewayConnection, "close", fail)
            with pytest.raises(OSError, match="cannot be closed"):
                await warm_module.discard(backend, warm.sandbox, warm.gateway)
        assert warm.sandbox.id not in backend.live
        pool.release(warm)


# Sandboxes that are launched for one session


OWN = SandboxSpec(env={"OWN": "1"})


async def test_a_sandbox_of_its_own() -> None:
    """It is launched with the caller's spec, counts as leased, and is removed when it is released."""
    async with fake_backend() as backend, running(backend, min_size=0) as pool:
        warm = await pool.acquire_own(OWN, timeout=DEADLINE_S)
        assert warm.sandbox.spec == OWN
        assert pool.status().busy_containers == 1
        check(pool)
        pool.release(warm)
        await until(lambda: pool.status().total_containers == 0)
        assert backend.live == {}


async def test_a_free_sandbox_makes_room() -> None:
    """In a full pool a free sandbox is removed, and none is launched in its place first."""
    async with fake_backend() as backend, running(backend, min_size=2, max_size=2) as pool:
        warm = await pool.acquire_own(OWN, timeout=DEADLINE_S)
        assert warm.sandbox.spec == OWN
        assert pool.status().total_containers <= 2
        second = await pool.acquire_own(OWN, timeout=DEADLINE_S)
        with pytest.raises(AcquireTimeout):
            await pool.acquire_own(OWN, timeout=0.05)
        check(pool)
        pool.release(warm)
        pool.release(second)
    assert pool._state.own_waiters == 0


async def test_an_own_launch_that_fails() -> None:
    """The caller gets the reason, and its place is free again; a cancelled one leaves nothing, too."""
    async with fake_backend() as backend, running(backend, min_size=0, max_size=1) as pool:

        async def fail(sandbox: FakeSandbox) -> None:
            raise LaunchError("no such directory")

        backend.on_launch = fail
        with pytest.raises(LaunchFailed, match="no such directory"):
            await pool.acquire_own(OWN, timeout=DEADLINE_S)
        backend.on_launch = None
        await until(lambda: pool.status().total_containers == 0)
        waiting = asyncio.create_task(pool.acquire_own(OWN, timeout=DEADLINE_S))
        await turns(2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: pool.status().total_containers == 0)
        pool.release(await pool.acquire_own(OWN, timeout=DEADLINE_S))


async def test_own_sandboxes_of_a_closed_pool() -> None:
    """A caller that waits for a place is refused when the pool closes."""
    async with fake_backend() as backend, running(backend, min_size=0, max_size=1) as pool:
        warm = await pool.acquire_own(OWN, timeout=DEADLINE_S)
        waiting = asyncio.create_task(pool.acquire_own(OWN, timeout=DEADLINE_S))
        await turns(2)
        stopping = asyncio.create_task(pool.stop(STOP_S))
        with pytest.raises(PoolClosed):
            await waiting
        pool.release(warm)
        await stopping
