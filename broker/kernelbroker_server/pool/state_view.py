"""What can be read of the state of a pool."""

from __future__ import annotations

import math
from collections import deque

from ..fair_queue import FairQueue
from .autoscaler import Autoscaler
from .sandboxes import Sandboxes, SandboxState

WARM = (SandboxState.IDLE, SandboxState.CHECKING)
FREE = (SandboxState.STARTING, *WARM)


class PoolStateView:
    """The base of `PoolState`, which sets the attributes."""

    _now: float
    _sandboxes: Sandboxes
    _urgent: deque[int]
    _waiting: FairQueue[int]
    _urgent_own: deque[int]
    _waiting_own: FairQueue[int]
    _autoscaler: Autoscaler
    _no_launch_before: float
    _draining: bool

    def count(self, *states: SandboxState) -> int:
        """The number of sandboxes in any of these states; of all sandboxes if none is given."""
        return self._sandboxes.count(*states) if states else len(self._sandboxes)

    def is_checking(self, sandbox_id: str) -> bool:
        return self._sandboxes.is_in(sandbox_id, SandboxState.CHECKING)

    @property
    def waiters(self) -> int:
        return len(self._urgent) + len(self._waiting)

    @property
    def own_waiters(self) -> int:
        """Those that wait for a place for a sandbox of their own."""
        return len(self._urgent_own) + len(self._waiting_own)

    @property
    def order(self) -> list[tuple[str, int]]:
        """The tenants that wait, the next to be served first, each with the number of its waiters."""
        return self._waiting.order()

    @property
    def next_idle(self) -> str | None:
        """The sandbox that is leased next; None if none is free."""
        return next(iter(self._sandboxes.idle), None)

    def each(self) -> list[tuple[str, SandboxState, float]]:
        """All sandboxes: id, state, and seconds since each is warm; NaN while it starts."""
        entries = self._sandboxes
        return [
            (name, entries.state_of(name), self._now - entries.warm_at(name))
            for name in entries.names(*SandboxState)
        ]

    @property
    def empty(self) -> bool:
        return not self._sandboxes

    @property
    def spare(self) -> int:
        """How many sandboxes the pool tries to keep free at present."""
        return 0 if self._draining else self._autoscaler.target

    @property
    def back_off(self) -> float:
        """Seconds until launches are tried again after a failure; 0 if they are not held back."""
        return max(0.0, self._no_launch_before - self._now)

    @property
    def load(self) -> float:
        """Sandboxes leased or waited for, divided by those leased, free or starting."""
        demand = self.count(SandboxState.LEASED) + self.waiters
        if supply := self.count(SandboxState.LEASED, *FREE):
            return demand / supply
        return math.inf if demand else 0.0
