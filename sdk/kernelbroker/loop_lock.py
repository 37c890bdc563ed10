"""A lock for objects that may be used in one event loop after another."""

from __future__ import annotations

import asyncio


class LoopLock:
    """`current` is an `asyncio.Lock` of the running loop.

    An `asyncio.Lock` stays bound to the loop in which a task first waited for it. A new loop gets a
    new lock here, since no task of a former loop can still be inside.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @property
    def current(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock
