"""Enforces a limit of memory for a container whose runtime cannot change its own, such as gVisor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .base import Sandbox

_INTERVAL_S = 0.5


class MemoryWatch:
    """Watches one sandbox, from `start` to `stop`.

    Args:
        on_exceeded: called once, when the sandbox uses more than its `limits`.
    """

    def __init__(self, sandbox: Sandbox, on_exceeded: Callable[[], Awaitable[None]]) -> None:
        self._sandbox = sandbox
        self._on_exceeded = on_exceeded
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch. Does nothing if it is watched."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name=f"memory of {self._sandbox.id}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while not self._sandbox.ended.done():
            used = await self._sandbox.memory()
            if used is not None and used > self._sandbox.limits.memory:
                await self._on_exceeded()
                return
            await asyncio.wait([self._sandbox.ended], timeout=_INTERVAL_S)
