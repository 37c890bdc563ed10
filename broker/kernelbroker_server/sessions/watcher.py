"""What follows the executions of a session as they are created, however far behind it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class _Log(Protocol):
    id: str


L = TypeVar("L", bound=_Log)


class Watcher(Generic[L]):
    """A queue of executions for one reader. None ends it: the reader fell behind, or the session ended.

    A reader that is behind holds no logs that the session has forgotten: they are read from the store again
    when their turn comes.

    Args:
        find: reads an execution that was forgotten, by its id.
    """

    def __init__(self, find: Callable[[str], Awaitable[L | None]]) -> None:
        self._find = find
        self._waiting: deque[L | str | None] = deque()
        self._changed = asyncio.Event()

    @property
    def lag(self) -> int:
        """How many executions the reader is behind."""
        return len(self._waiting)

    def put(self, log: L | None) -> None:
        self._waiting.append(log)
        self._changed.set()

    def forget(self, log: L) -> None:
        """Hold only the id of an execution that can be found again."""
        for place, each in enumerate(self._waiting):
            if each is log:
                self._waiting[place] = log.id

    async def get(self) -> L | None:
        """Wait for the next execution. Raises Unavailable if it cannot be read again."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        if isinstance(forgotten := self._waiting[0], str):
            found = await self._find(forgotten)
            self._waiting.popleft()
            return found
        return self.get_nowait()

    def get_nowait(self) -> L | None:
        """Return the next execution. Raises LookupError if there is none in memory."""
        if not self._waiting or isinstance(found := self._waiting[0], str):
            raise LookupError("no execution is in memory")
        self._waiting.popleft()
        return found
