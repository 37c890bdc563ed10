"""Helpers for event loops: wait for a condition, cancel at any step, and find remaining tasks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

DEADLINE_S = 30.0
"""For what should take milliseconds: a busy machine is no failure."""

CANCEL_DEADLINE_S = 60.0
"""For the end of a task that was cancelled."""

_OURS = (
    "launch ",
    "remove ",
    "watch ",
    "check ",
    "pool clock",
    "memory watchdog",
    "quota watch",
    "session ",
    "kernel-reader",
    "egress ",
)


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Let the event loop run until the condition holds."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} does not come about")
        await asyncio.sleep(0)


async def turns(count: int) -> None:
    """Let the event loop run this many times."""
    for _ in range(count):
        await asyncio.sleep(0)


MOMENTS = (*range(12), 14, 17, 21, 26, 32, 40, None)
"""Turns of the loop after which something happens to work that takes fewer than 40; None: at its end."""


async def moment(count: int | None, at_end: Callable[[], object]) -> None:
    """Wait until a moment of `MOMENTS` has come; `at_end` tells whether the work has ended."""
    if count is None:
        await until(at_end, "the end of the work")
    else:
        await turns(count)


async def cancelled_anywhere(
    work: Callable[[], Awaitable[Any]], *, growth: float = 1.0
) -> AsyncIterator[asyncio.Task[Any]]:
    """Run `work` again and again, each time cancelled later, until it ends before it is cancelled.

    Yields each task when it has ended: cancelled, or with a result if it was not cancelled in time.

    Args:
        growth: how many more turns of the loop the next run gets: the turns so far times `growth`
            minus 1, and at least one. 1 tries every turn; work that waits for other processes takes
            thousands of turns and needs more.
    """
    count = 0
    for _ in itertools.count():
        task = asyncio.ensure_future(work())
        await turns(count)
        complete = task.done()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=CANCEL_DEADLINE_S)
        assert done, f"not ended {CANCEL_DEADLINE_S:g} s after it was cancelled"
        yield task
        if complete:
            return
        count = max(count + 1, int(count * growth))


async def cancelled_at(coroutine: Any, step: int) -> bool:
    """Run a coroutine and cancel it at its `step`th wait. Returns whether it waited so often."""
    task = asyncio.current_task()
    assert task is not None

    class Steps:
        """Wraps a coroutine and counts how often it waits."""

        def __await__(self) -> Any:
            waits = 0
            sent = coroutine.send(None)
            while True:
                waits += 1
                if waits == step:
                    task.cancel()
                try:
                    value = yield sent
                except BaseException as error:
                    sent = coroutine.throw(error)
                else:
                    sent = coroutine.send(value)

    try:
        await Steps()
    except StopIteration:
        return False
    except RuntimeError as error:  # a StopIteration inside a generator
        if isinstance(error.__cause__, StopIteration):
            return False
        raise
    except asyncio.CancelledError:
        task.uncancel()
        return True
    return False


def broker_tasks() -> set[str]:
    """The names of the broker's running tasks."""
    return {
        task.get_name()
        for task in asyncio.all_tasks()
        if not task.done() and task.get_name().startswith(_OURS)
    }
