"""How many sandboxes a pool keeps free: more while it is busy, fewer when it is quiet. No I/O, no clock.

The target changes in steps of one, so that a short burst changes little.
"""

from __future__ import annotations

import enum
import math


class Load(enum.Enum):
    """How busy the pool is, compared with its thresholds."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


STEP_S = {Load.HIGH: 1.0, Load.LOW: 10.0}
"""Seconds for which the load must stay high or low before the target changes by one."""


class Autoscaler:
    """Decides the number of free sandboxes.

    Args:
        smallest, largest: the bounds of `target`.
        high: the target grows while the load is this or more.
        low: the target shrinks while the load is this or less.
        now: the current time in seconds, of the clock that `step` is called with.

    Attributes:
        target: how many sandboxes should be free.
    """

    def __init__(self, *, smallest: int, largest: int, high: float, low: float, now: float) -> None:
        self.target = smallest
        self._smallest, self._largest = smallest, max(smallest, largest)
        self._high, self._low = high, low
        self._load, self._since = Load.NORMAL, now

    def step(self, load: float, now: float, *, may_grow: bool) -> Load:
        """Take the current load into account.

        Returns:
            HIGH or LOW if a step up or down was due now, else NORMAL.
        """
        level = self._level(load, may_grow)
        if level is not self._load:
            self._load, self._since = level, now
        if now - self._since < STEP_S.get(level, math.inf):
            return Load.NORMAL
        self._since = now
        change = 1 if level is Load.HIGH else -1
        self.target = min(max(self.target + change, self._smallest), self._largest)
        return level

    def _level(self, load: float, may_grow: bool) -> Load:
        if load >= self._high:
            return Load.HIGH if may_grow else Load.NORMAL
        return Load.LOW if load <= self._low else Load.NORMAL
