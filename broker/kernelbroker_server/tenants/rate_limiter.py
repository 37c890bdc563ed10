"""A token bucket: how often something may be done in a minute."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateLimiter:
    """Allows a burst of one minute's worth, then a steady rate.

    Args:
        per_minute: how many are allowed in a minute.
        clock: seconds of a monotonic clock.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._per_second = per_minute / 60
        self._capacity = max(1.0, per_minute)
        self._clock = clock
        self._tokens = self._capacity
        self._updated_at = clock()

    def delay(self) -> float:
        """Seconds until the next one is allowed; 0 if it is allowed now. Takes nothing."""
        now = self._clock()
        self._tokens = min(
            self._capacity, self._tokens + (now - self._updated_at) * self._per_second
        )
        self._updated_at = now
        return max(0.0, 1 - self._tokens) / self._per_second

    def charge(self, count: float) -> None:
        """Count some that were allowed elsewhere."""
        self._tokens = max(-self._capacity, self._tokens - count)

    def take(self) -> None:
        """Count one. Call it only if `delay` is 0."""
        self._tokens -= 1
