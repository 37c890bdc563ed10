"""Work that is finished although its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker_server.cancellation import run_to_completion

from tests.support.waiting import DEADLINE_S, turns


async def test_the_result_is_returned() -> None:
    """Without a cancellation the result of the work is returned."""
    assert await run_to_completion(asyncio.sleep(0, "result")) == "result"


async def test_an_error_is_raised() -> None:
    """Without a cancellation the work's own error is raised."""

    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_to_completion(work())


@pytest.mark.parametrize("cancellations", [1, 2, 5])
async def test_a_cancelled_caller_waits_for_the_end_of_the_work(cancellations: int) -> None:
    """The work ends first, even after several cancellations, and then the cancellation is raised."""
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(run_to_completion(work()))
    await turns(2)
    for _ in range(cancellations):
        caller.cancel()
        await turns(2)
        assert not caller.done()
    may_end.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([caller])
    assert caller.cancelled()
    assert ended.is_set()


async def test_a_caller_that_is_cancelled_at_once_still_begins_the_work() -> None:
    """Work that has been handed over is done, also if the caller is cancelled before its first step."""
    ended = asyncio.Event()

    async def work() -> None:
        ended.set()

    async def call() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await run_to_completion(work())

    with pytest.raises(asyncio.CancelledError):
        await call()
    assert ended.is_set()


async def test_the_error_of_the_work_is_the_cause_of_the_cancellation() -> None:
    """If the caller was cancelled, an error of the work is the cause of the CancelledError."""
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        raise ZeroDivisionError

    causes: list[BaseException | None] = []

    async def call() -> None:
        try:
            await run_to_completion(work())
        except asyncio.CancelledError as exc:
            causes.append(exc.__cause__)
            raise

    caller = asyncio.create_task(call())
    await turns(2)
    caller.cancel()
    await turns(2)
    may_end.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([caller])
    assert [type(cause) for cause in causes] == [ZeroDivisionError]


async def test_a_timeout_of_the_caller_is_raised_after_the_work() -> None:
    """`asyncio.timeout` around it ends in TimeoutError, when the work has ended."""
    ended = asyncio.Event()

    async def work() -> None:
        await turns(20)
        ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await run_to_completion(work())
    assert ended.is_set()
