"""Waiting for what nobody announces, turn by turn of the loop, and looking for what was left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

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


def broker_tasks() -> set[str]:
    """Names of the broker's tasks that still run."""
    return {
        task.get_name()
        for task in asyncio.all_tasks()
        if not task.done() and task.get_name().startswith(_OURS)
    }
