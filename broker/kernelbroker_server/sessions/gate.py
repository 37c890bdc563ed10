"""How many executions may run at once, and how many may wait, over all sessions."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from kernelbroker.protocol.errors import TooManyRequests


class Gate:
    """An execution enters when it is accepted and has its turn when it runs.

    Turns are given in order of asking. Each execution that entered takes a turn or leaves.
    """

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self._turns = asyncio.Semaphore(max_concurrent)
        self._max_queued = max_queued
        self.waiting = 0
        self.running = 0

    def enter(self) -> None:
        """Raises TooManyRequests where too many are waiting."""
        if self.waiting >= self._max_queued:
            raise TooManyRequests(
                f"{self.waiting} executions are waiting; try again when some have ended",
                retry_after=1,
            )
        self.waiting += 1

    def leave(self) -> None:
        """Give up without a turn."""
        self.waiting -= 1

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._turns.release()

    @staticmethod
    def new_id() -> str:
        """An id that nobody can guess, for an execution or a session."""
        return secrets.token_hex(12)
