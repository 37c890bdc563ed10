"""Waits for any of several things, with fewer turns of the event loop than `asyncio.wait` takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waking:
    """Wakes one waiting task. Call it when what the task waits for may have come."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def __call__(self, _done: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until the condition holds, for at most `timeout` seconds. Returns whether it holds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        timer = loop.call_at(deadline, self)
        try:
            while not condition() and loop.time() < deadline:
                self._waiter = loop.create_future()
                await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
        return condition()
