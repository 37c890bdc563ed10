"""The pool's rules: who gets which sandbox, and when one is launched, checked or replaced.

No I/O, no clock, no tasks. Every method decides at once and returns what is to be done as actions; the
runner carries them out and tells how they went. In which state each sandbox is stands in `sandboxes.py`.

Tenants that wait take turns, each one's waiters in order of arrival; those of a session that lost its
sandbox come before those that have had none, whosever they are.

Time comes in by `tick` alone, in seconds of any monotonic clock: whatever happens between two ticks
happens at the time of the first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .line import Line
from .sandboxes import Sandboxes, SandboxState
from .scaling import Load, Spare

_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses after launches that failed one after another."""
_WARM = (SandboxState.IDLE, SandboxState.CHECKING)
_FREE = (SandboxState.STARTING, *_WARM)


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a sandbox under this id, then report `launched` or `launch_failed`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Check:
    """Find out whether the sandbox is well, then report `checked`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the sandbox, then report `removed`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """The waiter has the sandbox now; it is LEASED already."""

    waiter: int
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The waiter gives up its place in a full line to a tenant that has fewer."""

    waiter: int


Action: TypeAlias = Launch | Check | Remove | Assign | Refuse


class PoolFull(Exception):
    """No sandbox is idle and as many as may wait are waiting."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many sandboxes there may be, and for how long.

    The load is what is leased or waited for, divided by the sandboxes that are leased, free or
    starting.

    Attributes:
        min_size: sandboxes kept warm and free, as far as `max_size` allows.
        max_size: sandboxes in any state, those being removed included.
        max_waiters: who may wait for one, besides who waits for one that is being checked. A tenant
            that has most of a full line loses its latest places to those that have fewer.
        max_launches: launches under way at once.
        scale_up_threshold: while the load is this or more, one sandbox more is kept free for each
            second, up to `max_size`.
        scale_down_threshold: while the load is this or less, one less for each 10 seconds, down to
            `min_size`.
        container_ttl: seconds after which a sandbox that nobody leased is replaced; 0 for never.
        health_check_interval: seconds between two checks of an idle sandbox; 0 for none.
    """

    min_size: int = 3
    max_size: int = 10
    max_waiters: int = 100
    max_launches: int = 2
    scale_up_threshold: float = 0.8
    scale_down_threshold: float = 0.3
    container_ttl: float = 3600.0
    health_check_interval: float = 15.0


class PoolState:
    """What the pool is to do. `validate_state` holds after every call.

    Attributes:
        failures: launches that failed one after another.
    """

    def __init__(self, limits: PoolLimits, new_id: Callable[[], str], now: float = 0.0) -> None:
        self.limits = limits
        self.failures = 0
        self._new_id = new_id
        self._now = now
        self._sandboxes = Sandboxes()
        self._urgent: deque[int] = deque()
        self._waiting = Line()
        self._spare = Spare(
            smallest=limits.min_size,
            largest=limits.max_size,
            high=limits.scale_up_threshold,
            low=limits.scale_down_threshold,
            now=now,
        )
        self._held_until = -math.inf
        self._draining = False
        self._closed = False

    # What clients of the pool ask.

    def acquire(self, waiter: int, *, tenant: str = "", urgent: bool = False) -> list[Action]:
        """Ask for a sandbox; an `Assign` or a `Refuse` for this waiter comes now or from a later call.

        Raises:
            PoolFull: too many are waiting; nothing has changed.
        """
        if urgent:
            self._urgent.append(waiter)
            return self._settle()
        actions: list[Action] = []
        may_wait = self.limits.max_waiters + self.count(SandboxState.CHECKING)
        if not self._sandboxes.idle and len(self._waiting) >= may_wait:
            if (refused := self._waiting.give_way(tenant)) is None:
                raise PoolFull
            actions.append(Refuse(refused))
        self._waiting.add(waiter, tenant)
        return [*actions, *self._settle()]

    def cancel(self, waiter: int) -> None:
        """The waiter has gone. One that was assigned a sandbox already must release it instead."""
        if waiter in self._urgent:
            self._urgent.remove(waiter)
        self._waiting.remove(waiter)

    def release(self, sandbox_id: str) -> list[Action]:
        """The lease has ended."""
        self._sandboxes.expect(sandbox_id, SandboxState.LEASED)
        return [self._remove(sandbox_id), *self._settle()]

    def drain(self) -> None:
        """From now on launch for those alone who wait."""
        self._draining = True

    def close(self) -> list[Action]:
        """No more launches; free sandboxes are removed. Leased ones are, as they are released."""
        self._closed = True
        return [self._remove(name) for name in self._sandboxes.names(*_WARM)]

    # What the runner reports.

    def tick(self, now: float) -> list[Action]:
        """So late it is. Called often, and at least once after a failed launch's pause."""
        self._now = now
        if self._closed:
            return []
        actions = self._scale()
        actions += self._settle()
        return [*actions, *self._check_next()]

    def launched(self, sandbox_id: str) -> list[Action]:
        """The sandbox is warm."""
        self._sandboxes.found_well(sandbox_id, self._now)
        self.failures = 0
        return [self._remove(sandbox_id)] if self._closed else self._settle()

    def launch_failed(self, sandbox_id: str) -> float:
        """Nothing was left behind. No launch follows for so many seconds, which are returned."""
        self._sandboxes.drop(sandbox_id, SandboxState.STARTING)
        pause = _BACKOFF_S[min(self.failures, len(_BACKOFF_S) - 1)]
        self.failures += 1
        self._held_until = max(self._held_until, self._now + pause)
        return pause

    def checked(self, sandbox_id: str, *, healthy: bool) -> list[Action]:
        """How a check went; of no interest for a sandbox that is being removed meanwhile."""
        if not self.is_checking(sandbox_id):
            return []
        if not healthy:
            return [self._remove(sandbox_id), *self._settle(), *self._check_next()]
        self._sandboxes.found_well(sandbox_id, self._now)
        return [*self._settle(), *self._check_next()]

    def died(self, sandbox_id: str) -> list[Action]:
        """A sandbox ended by itself. A leased one stays its session's until that releases it."""
        if not self._sandboxes.is_in(sandbox_id, *_WARM):
            return []
        return [self._remove(sandbox_id), *self._settle()]

    def removed(self, sandbox_id: str) -> list[Action]:
        """Every trace of it is gone."""
        self._sandboxes.drop(sandbox_id, SandboxState.REMOVING)
        return self._settle()

    # What can be seen.

    def count(self, *states: SandboxState) -> int:
        """Sandboxes in any of these states; in all of them if none is given."""
        return self._sandboxes.count(*states) if states else len(self._sandboxes)

    def is_checking(self, sandbox_id: str) -> bool:
        return self._sandboxes.is_in(sandbox_id, SandboxState.CHECKING)

    @property
    def waiters(self) -> int:
        return len(self._urgent) + len(self._waiting)

    @property
    def empty(self) -> bool:
        return not self._sandboxes

    @property
    def spare(self) -> int:
        """Sandboxes that are kept free at present, as far as there is room."""
        return 0 if self._draining else self._spare.size

    @property
    def back_off(self) -> float:
        """Seconds until launches are tried again after a failure; 0 where they are not held back."""
        return max(0.0, self._held_until - self._now)

    @property
    def load(self) -> float:
        """What is leased or waited for, divided by what is leased, free or starting."""
        wanted = self.count(SandboxState.LEASED) + self.waiters
        there = self.count(SandboxState.LEASED, *_FREE)
        return wanted / there if there else math.inf if wanted else 0.0

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        limits = self.limits
        self._sandboxes.validate_state()
        assert self.count() <= limits.max_size
        assert self.count(SandboxState.STARTING) <= limits.max_launches
        assert self.count(SandboxState.CHECKING) <= 1
        assert len(self._waiting) <= limits.max_waiters + 1
        assert not (self._sandboxes.idle and self.waiters), "a sandbox is idle while somebody waits"
        assert not (self._closed and self.count(*_WARM)), "a closed pool keeps sandboxes"
        least = 0 if self._draining else limits.min_size
        assert least <= self.spare <= max(limits.min_size, limits.max_size), self.spare

    # The rules.

    def _settle(self) -> list[Action]:
        """Hand idle sandboxes to waiters, let go of one that is too old, launch what is missing."""
        actions: list[Action] = []
        while self._sandboxes.idle and self.waiters:
            sandbox_id = self._sandboxes.idle[0]
            self._sandboxes.move(sandbox_id, SandboxState.LEASED)
            waiter = self._urgent.popleft() if self._urgent else self._waiting.take()
            actions.append(Assign(waiter, sandbox_id))
        if (old := self._expired()) is not None and self._may_go():
            actions.append(self._remove(old))
        while self._wants_launch():
            sandbox_id = self._new_id()
            self._sandboxes.add(sandbox_id)
            actions.append(Launch(sandbox_id))
        return actions

    def _wants_launch(self) -> bool:
        starting = self.count(SandboxState.STARTING)
        replacement = self._expired() is not None
        return (
            not self._closed
            and not self.back_off
            and self.count() < self.limits.max_size
            and starting < self.limits.max_launches
            and self.count(*_FREE) < self.waiters + self.spare + replacement
        )

    def _expired(self) -> str | None:
        """The oldest idle sandbox, if it is too old: they are replaced one after another."""
        if not self._sandboxes.idle or not self.limits.container_ttl or self._draining:
            return None
        oldest = min(self._sandboxes.idle, key=self._sandboxes.warm_at)
        age = self._now - self._sandboxes.warm_at(oldest)
        return oldest if age >= self.limits.container_ttl else None

    def _may_go(self) -> bool:
        """Whether one that is too old is not needed: its successor is warm, or finds no room beside it."""
        if self.count(*_WARM) > self.spare:
            return True
        coming_or_going = self.count(SandboxState.STARTING, SandboxState.REMOVING)
        full = self.count() >= self.limits.max_size
        return full and not coming_or_going and not self.back_off

    def _scale(self) -> list[Action]:
        """Keep one more free, or one less, when the load has been high or low for long enough."""
        # More of what cannot be launched is of no use.
        due = self._spare.step(self.load, self._now, may_grow=not self.failures)
        idle = self._sandboxes.idle
        if due is Load.LOW and idle and self.count(*_FREE) > self.spare:
            return [self._remove(idle[0])]
        return []

    def _check_next(self) -> list[Action]:
        """One at a time, so that a machine too busy to answer never loses all its sandboxes at once."""
        if not self._sandboxes.idle or not self.limits.health_check_interval:
            return []
        next_ = min(self._sandboxes.idle, key=self._sandboxes.well_at)
        since = self._now - self._sandboxes.well_at(next_)
        if since < self.limits.health_check_interval or self.count(SandboxState.CHECKING):
            return []
        self._sandboxes.move(next_, SandboxState.CHECKING)
        return [Check(next_)]

    def _remove(self, sandbox_id: str) -> Remove:
        self._sandboxes.move(sandbox_id, SandboxState.REMOVING)
        return Remove(sandbox_id)
