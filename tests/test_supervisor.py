"""Background tasks: restarted with a growing pause, shown, and stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kernelbroker_server import supervisor as supervisor_module
from kernelbroker_server.supervisor import (
    BACKOFF_S,
    RECOVERED_AFTER_S,
    Supervisor,
    TaskState,
    TaskStatus,
)
from kernelbroker_server.telemetry.logs import bound, bound_ids

from tests.support.waiting import DEADLINE_S, turns, until


class Time:
    """A clock that moves only by the pauses that the supervisor makes, and by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.may_go_on.wait()
        self.now += seconds


class Failing:
    """A task that fails this many times, then runs until it is cancelled."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.starts = 0
        self.running = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        if self.left:
            self.left -= 1
            raise RuntimeError("broken")
        self.running.set()
        await asyncio.Event().wait()


@pytest.fixture
async def time() -> Time:
    return Time()


@pytest.fixture
async def supervisor(time: Time) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(time.clock, time.sleep)
    yield supervisor
    async with asyncio.timeout(DEADLINE_S):
        await supervisor.stop()
    assert supervisor.status() == []


async def test_a_failing_task_is_restarted_and_its_error_logged(
    supervisor: Supervisor, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """A task goes on after a failure; the log has the error with its traceback."""
    task = Failing(1)
    supervisor.start("guard", task.run)
    async with asyncio.timeout(DEADLINE_S):
        await task.running.wait()
    assert task.starts == 2
    assert "the background task 'guard' failed and is restarted in 0.5 s" in caplog.text
    assert "RuntimeError: broken" in caplog.text


async def test_pauses_grow_up_to_a_bound(supervisor: Supervisor, time: Time) -> None:
    """Each failure in a row makes the pause longer, up to the longest one."""
    task = Failing(len(BACKOFF_S) + 3)
    supervisor.start("guard", task.run)
    async with asyncio.timeout(DEADLINE_S):
        await task.running.wait()
    assert time.pauses == [*BACKOFF_S, BACKOFF_S[-1], BACKOFF_S[-1], BACKOFF_S[-1]]


async def test_a_task_that_ran_for_long_starts_again_with_a_short_pause(
    supervisor: Supervisor, time: Time
) -> None:
    """Failures long ago neither show nor make the next pause longer."""
    may_fail = asyncio.Semaphore(0)

    async def run() -> None:
        await may_fail.acquire()
        raise RuntimeError("broken")

    supervisor.start("guard", run)
    for failures in range(1, 4):
        time.now += RECOVERED_AFTER_S
        assert supervisor.failing() == []
        may_fail.release()
        await until(lambda: len(time.pauses) == failures and supervisor.failing())  # noqa: B023
    assert time.pauses == [BACKOFF_S[0]] * 3


async def test_status_shows_what_fails(supervisor: Supervisor, time: Time) -> None:
    """A task shows as failing while it waits for its restart, and until it has run for a while."""
    time.may_go_on.clear()
    task = Failing(1)
    supervisor.start("guard", task.run)
    supervisor.start("another", Failing(0).run)
    assert [status.name for status in supervisor.status()] == ["another", "guard"]
    await until(lambda: bool(time.pauses))
    failing = TaskStatus("guard", TaskState.BACKING_OFF, 1, "RuntimeError: broken")
    assert supervisor.failing() == [failing]
    time.may_go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        await task.running.wait()
    assert supervisor.failing() == [
        TaskStatus("guard", TaskState.RUNNING, 1, "RuntimeError: broken")
    ]
    time.now += RECOVERED_AFTER_S
    assert supervisor.failing() == []


async def test_a_task_that_returns_is_over(supervisor: Supervisor, time: Time) -> None:
    """A task that returns is not restarted and no longer shown."""
    task = supervisor.start("guard", lambda: turns(2))
    await until(lambda: task.done)
    assert supervisor.status() == []
    assert time.pauses == []


async def test_a_stopped_task_is_not_restarted(supervisor: Supervisor, time: Time) -> None:
    """Stopping ends a task that runs, and one that waits for its restart; twice does no harm."""
    time.may_go_on.clear()
    running, failing = Failing(0), Failing(1)
    tasks = [supervisor.start("running", running.run), supervisor.start("failing", failing.run)]
    await until(lambda: bool(time.pauses) and running.running.is_set())
    for task in tasks:
        await task.stop()
        await task.stop()
        assert task.done
    assert supervisor.status() == []


async def test_a_task_stopped_before_its_first_step_never_runs(supervisor: Supervisor) -> None:
    """Stopping takes effect at once."""
    task = Failing(0)
    await supervisor.start("guard", task.run).stop()
    assert task.starts == 0
    assert supervisor.status() == []


async def test_a_task_does_not_carry_the_ids_of_the_request_that_started_it(
    supervisor: Supervisor,
) -> None:
    """Log lines of a background task do not name the request in which it was started."""
    seen: list[dict[str, str]] = []

    async def run() -> None:
        seen.append(dict(bound_ids()))

    with bound(request_id="r1"):
        supervisor.start("guard", run)
    await until(lambda: bool(seen))
    assert seen == [{}]


def test_pauses_are_bounded() -> None:
    """A task that cannot run is tried again at least every half minute."""
    assert max(supervisor_module.BACKOFF_S) <= 30
