"""What a session remembers of its executions, within bounds, and who is told of new ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from .execution import Execution, ExecutionState

_HISTORY = 100
"""Executions that a session remembers."""
_HISTORY_BYTES = 32 * 1024**2
"""What they may hold together, besides the latest."""
_WATCHER_LAG = 200
"""Executions that a watcher may be behind before it is cut off."""


class History(Mapping[str, Execution]):
    """Executions by their ids, oldest first."""

    def __init__(self) -> None:
        self._executions: dict[str, Execution] = {}
        self._watchers: set[asyncio.Queue[Execution | None]] = set()

    def __getitem__(self, execution_id: str) -> Execution:
        return self._executions[execution_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._executions)

    def __len__(self) -> int:
        return len(self._executions)

    def add(self, execution: Execution) -> None:
        """Remember it, and tell who watches."""
        self._executions[execution.id] = execution
        self._forget_old()
        for watcher in self._watchers:
            if watcher.qsize() < _WATCHER_LAG:
                watcher.put_nowait(execution)
            elif watcher.qsize() == _WATCHER_LAG:
                watcher.put_nowait(None)

    @contextlib.contextmanager
    def watch(self) -> Iterator[asyncio.Queue[Execution | None]]:
        """A queue of the executions that come from now on.

        None says that there is nothing more to come: the watcher fell behind, or the session ended.
        """
        queue: asyncio.Queue[Execution | None] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield queue
        finally:
            self._watchers.discard(queue)

    def end(self) -> None:
        """Forget all, and tell who watches. An execution may be remembered elsewhere for longer than
        its session, whose others are then in nobody's way."""
        self._executions.clear()
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def _forget_old(self) -> None:
        """Oldest first; never one that has not ended."""
        held = sum(execution.weight for execution in self._executions.values())
        for execution in list(self._executions.values())[:-1]:
            if len(self._executions) <= _HISTORY and held <= _HISTORY_BYTES:
                break
            if execution.state is ExecutionState.DONE:
                held -= execution.weight
                del self._executions[execution.id]
