"""How many sandboxes a pool keeps free: more while much of it is in use, fewer again when it is quiet.

Steps of one, so that a short burst moves little. No clock: times are handed in, in seconds.
"""

from __future__ import annotations

import enum
import math


class Load(enum.Enum):
    """How much of the pool is in use, against its thresholds."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


STEP_S = {Load.HIGH: 1.0, Load.LOW: 10.0}
"""How long the load has to stay so until one sandbox more, or one less, is kept free."""


class Spare:
    """
    Args:
        smallest, largest: what `size` stays within.
        high: a load of so much or more makes it grow.
        low: a load of so much or less makes it shrink.

    Attributes:
        size: how many are kept free at present.
    """

    def __init__(self, *, smallest: int, largest: int, high: float, low: float, now: float) -> None:
        self.size = smallest
        self._smallest, self._largest = smallest, max(smallest, largest)
        self._high, self._low = high, low
        self._load, self._since = Load.NORMAL, now

    def step(self, load: float, now: float, *, may_grow: bool) -> Load:
        """Take the load of this moment into account; tells which way a step was due, if any was."""
        level = self._level(load, may_grow)
        if level is not self._load:
            self._load, self._since = level, now
        if now - self._since < STEP_S.get(level, math.inf):
            return Load.NORMAL
        self._since = now
        change = 1 if level is Load.HIGH else -1
        self.size = min(max(self.size + change, self._smallest), self._largest)
        return level

    def _level(self, load: float, may_grow: bool) -> Load:
        if load >= self._high:
            return Load.HIGH if may_grow else Load.NORMAL
        return Load.LOW if load <= self._low else Load.NORMAL
