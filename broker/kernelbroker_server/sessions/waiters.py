"""Callers that wait for the same answer."""

from __future__ import annotations

import asyncio


class Waiters:
    """Futures that one call answers. Callers may be cancelled meanwhile."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def add(self) -> asyncio.Future[None]:
        """Return a future that the next `answer` resolves."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting

    def answer(self, error: Exception | None = None) -> None:
        """Resolve all futures, or with the error."""
        answered, self._waiting = self._waiting, []
        for waiting in answered:
            if waiting.done():  # its caller was cancelled
                continue
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)
