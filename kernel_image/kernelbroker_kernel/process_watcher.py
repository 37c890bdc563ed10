"""A reader of a process's output."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

WAITING_BYTES = 256 * 1024
"""Of the output that a watcher has not taken yet. Then the process waits."""


class Watcher:
    """One reader of a process's frames, from now on until the frame of its end."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        self._frames = deque(frames)
        self._size = sum(map(len, self._frames))
        self._changed = asyncio.Event()
        self.is_full = False

    @property
    def is_empty(self) -> bool:
        return not self._frames

    def wake(self) -> None:
        """Let `next` return."""
        self._changed.set()

    def put(self, data: bytes) -> None:
        self._frames.append(data)
        self._size += len(data)
        self.is_full = self._size >= WAITING_BYTES
        self._changed.set()

    async def next(self, timeout: float) -> bytes:
        """The frames that wait. Empty if none has come for `timeout` seconds."""
        if not self._frames:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
        taken = b"".join(self._frames)
        self._frames.clear()
        self._size, self.is_full = 0, False
        return taken
