"""When an action has to be over."""

from __future__ import annotations

import asyncio


class Deadline:
    """A moment, some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + seconds

    @property
    def ms(self) -> float:
        """What is left, for Playwright: at least one millisecond, since none means for ever there."""
        return max(1.0, (self._end - self._clock()) * 1000)
