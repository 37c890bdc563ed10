"""Turn by turn of the loop: waiting for what nobody announces, cancelling, and what was left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 10.0
"""For what should take milliseconds: a busy machine is no failure."""

_OURS = (
    "launch ",
    "remove ",
    "watch ",
    "check ",
    "pool clock",
    "session ",
    "kernel-reader",
    "egress ",
)


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Let the loop turn until the condition holds."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} does not come about")
        await asyncio.sleep(0)


async def turns(count: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled_at(coroutine: Any, step: int) -> bool:
    """Run a coroutine, cancel it when it waits for the `step`th time; tells whether it got there."""
    task = asyncio.current_task()
    assert task is not None

    class Steps:
        """Stands between the coroutine and the loop, and counts."""

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
    """Names of the broker's tasks that still run."""
    return {
        task.get_name()
        for task in asyncio.all_tasks()
        if not task.done() and task.get_name().startswith(_OURS)
    }
