"""The rules of a pool: who gets a sandbox, and when one is launched, checked or replaced.

No I/O, no clock, no tasks. Each method decides at once and returns actions. The runner carries them out and
reports the results. `sandboxes.py` has the states of a single sandbox.

Waiting tenants take turns; the waiters of one tenant are served in order of arrival. Urgent waiters, which
are sessions that lost their sandbox, come before all others.

A session that needs a spec of its own waits for a place, in which the runner launches its sandbox. Places
go by turns to such sessions and to launches for those that wait for any sandbox. In a full pool a free
sandbox makes room.

Time comes in only by `tick`, in seconds of a monotonic clock. Everything between two ticks happens at the
time of the first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..fair_queue import FairQueue
from .autoscaler import Autoscaler, Load
from .sandboxes import Sandboxes, SandboxState
from .state_view import FREE, WARM, PoolStateView

_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses after launches that failed in a row."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a sandbox under this id, then report `launched` or `launch_failed`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Check:
    """Check the health of the sandbox, then report `checked`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the sandbox, then report `removed`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Give the sandbox, which is already LEASED, to the waiter."""

    waiter: int
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Place:
    """Launch a sandbox of the waiter's own spec under this id, which is LEASED from now on."""

    waiter: int
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the waiter: it made room in a full queue for a tenant with fewer waiters."""

    waiter: int


Action: TypeAlias = Launch | Check | Remove | Assign | Place | Refuse


class PoolFull(Exception):
    """No sandbox is idle, and the queue of waiters is full."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many sandboxes a pool has, and for how long.

    The load is the number of sandboxes leased or waited for, divided by the number of those leased, free or
    starting.

    Attributes:
        min_size: sandboxes kept warm and free, within `max_size`.
        max_size: sandboxes in any state, including those that are being removed.
        max_waiters: callers that may wait, in addition to one for a sandbox that is being checked. If the
            queue is full, the tenant with the most waiters loses its latest one to a tenant with fewer.
        max_launches: launches at the same time.
        scale_up_threshold: while the load is this or more, the pool keeps one more sandbox free each
            second, up to `max_size`.
        scale_down_threshold: while the load is this or less, the pool keeps one less free every 10
            seconds, down to `min_size`.
        container_ttl: seconds after which a sandbox that was not leased is replaced; 0 for never.
        health_check_interval: seconds between two checks of an idle sandbox; 0 for no checks.
    """

    min_size: int = 3
    max_size: int = 10
    max_waiters: int = 100
    max_launches: int = 2
    scale_up_threshold: float = 0.8
    scale_down_threshold: float = 0.3
    container_ttl: float = 3600.0
    health_check_interval: float = 15.0


class PoolState(PoolStateView):
    """The state of a pool and its rules. `validate_state` holds after every call.

    Attributes:
        failures: launches that failed in a row.
    """

    def __init__(self, limits: PoolLimits, new_id: Callable[[], str], now: float = 0.0) -> None:
        self.limits = limits
        self.failures = 0
        self._new_id = new_id
        self._now = now
        self._sandboxes = Sandboxes()
        self._urgent: deque[int] = deque()
        self._waiting: FairQueue[int] = FairQueue()
        self._urgent_own: deque[int] = deque()
        self._waiting_own: FairQueue[int] = FairQueue()
        self._own_is_next = True
        self._autoscaler = Autoscaler(
            smallest=limits.min_size,
            largest=limits.max_size,
            high=limits.scale_up_threshold,
            low=limits.scale_down_threshold,
            now=now,
        )
        self._no_launch_before = -math.inf
        self._draining = False
        self._closed = False
        self._leaves = False

    # Requests.

    def acquire(self, waiter: int, *, tenant: str = "", urgent: bool = False) -> list[Action]:
        """Ask for a sandbox. This call or a later one returns an `Assign` or a `Refuse` for the waiter.

        Raises:
            PoolFull: the queue is full. Nothing has changed.
        """
        if urgent:
            self._urgent.append(waiter)
            return self._assign_and_launch()
        actions: list[Action] = []
        may_wait = self.limits.max_waiters + self.count(SandboxState.CHECKING)
        if not self._sandboxes.idle and len(self._waiting) >= may_wait:
            if (refused := self._waiting.evict_for(tenant)) is None:
                raise PoolFull
            actions.append(Refuse(refused))
        self._waiting.add(waiter, tenant)
        return [*actions, *self._assign_and_launch()]

    def acquire_own(self, waiter: int, *, tenant: str = "", urgent: bool = False) -> list[Action]:
        """Ask for a place for a sandbox of one's own. This call or a later one returns a `Place`.

        Raises:
            PoolFull: too many wait for a place. Nothing has changed.
        """
        if urgent:
            self._urgent_own.append(waiter)
        elif self._is_taken() and len(self._waiting_own) >= self.limits.max_waiters:
            raise PoolFull
        else:
            self._waiting_own.add(waiter, tenant)
        return self._assign_and_launch()

    def cancel(self, waiter: int) -> None:
        """Remove a waiter. One that was already assigned a sandbox must release it instead."""
        for urgent in (self._urgent, self._urgent_own):
            if waiter in urgent:
                urgent.remove(waiter)
        self._waiting.remove(waiter)
        self._waiting_own.remove(waiter)

    def release(self, sandbox_id: str) -> list[Action]:
        """End a lease. The sandbox is removed."""
        self._sandboxes.require(sandbox_id, SandboxState.LEASED)
        return [self._remove(sandbox_id), *self._assign_and_launch()]

    def drain(self) -> None:
        """From now on launch only for waiters."""
        self._draining = True

    def set_draining(self, draining: bool) -> list[Action]:
        """Launch only for waiters and remove the free sandboxes, or take that back."""
        self._draining = draining
        if not draining:
            return self._assign_and_launch()
        return [self._remove(name) for name in self._sandboxes.names(SandboxState.IDLE)]

    def leave(self) -> None:
        """Stop launching. Free and leased sandboxes stay, for the next broker."""
        self._closed = self._leaves = True

    def close(self) -> list[Action]:
        """Stop launching and remove all free sandboxes. Leased ones are removed when they are released."""
        self._closed = True
        return [self._remove(name) for name in self._sandboxes.names(*WARM)]

    # Reports of the runner.

    def tick(self, now: float) -> list[Action]:
        """Set the time. Called often, and at least once after the pause of a failed launch."""
        self._now = now
        if self._closed:
            return []
        actions = self._scale()
        actions += self._assign_and_launch()
        return [*actions, *self._check_next()]

    def launched(self, sandbox_id: str) -> list[Action]:
        """The launch succeeded: the sandbox is warm."""
        self._sandboxes.mark_healthy(sandbox_id, self._now)
        self.failures = 0
        return [self._remove(sandbox_id)] if self._closed else self._assign_and_launch()

    def adopt(self, sandbox_id: str, *, leased: bool, beyond_limit: bool = False) -> bool:
        """Add a sandbox that an earlier broker has launched. Returns whether there is room for it."""
        if self.count() >= self.limits.max_size and not beyond_limit:
            return False
        self._sandboxes.add(sandbox_id)
        self._sandboxes.mark_healthy(sandbox_id, self._now)
        if leased:
            self._sandboxes.move(sandbox_id, SandboxState.LEASED)
        return True

    def launch_failed(self, sandbox_id: str) -> float:
        """The launch failed and left nothing behind.

        Returns:
            seconds for which nothing is launched.
        """
        self._sandboxes.drop(sandbox_id, SandboxState.STARTING)
        pause = _BACKOFF_S[min(self.failures, len(_BACKOFF_S) - 1)]
        self.failures += 1
        self._no_launch_before = max(self._no_launch_before, self._now + pause)
        return pause

    def checked(self, sandbox_id: str, *, healthy: bool) -> list[Action]:
        """The result of a check; ignored if the sandbox is already being removed."""
        if not self.is_checking(sandbox_id):
            return []
        if not healthy:
            return [self._remove(sandbox_id), *self._assign_and_launch(), *self._check_next()]
        self._sandboxes.mark_healthy(sandbox_id, self._now)
        return [*self._assign_and_launch(), *self._check_next()]

    def died(self, sandbox_id: str) -> list[Action]:
        """A sandbox ended by itself. A leased one stays leased until its session releases it."""
        if not self._sandboxes.is_in(sandbox_id, *WARM):
            return []
        return [self._remove(sandbox_id), *self._assign_and_launch()]

    def removed(self, sandbox_id: str) -> list[Action]:
        """The sandbox has been removed."""
        self._sandboxes.drop(sandbox_id, SandboxState.REMOVING)
        return self._assign_and_launch()

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        limits = self.limits
        self._sandboxes.validate_state()
        assert self.count() <= limits.max_size
        assert self.count(SandboxState.STARTING) <= limits.max_launches
        assert self.count(SandboxState.CHECKING) <= 1
        assert len(self._waiting) <= limits.max_waiters + 1
        assert not (self._sandboxes.idle and self.waiters), "idle although there are waiters"
        assert len(self._waiting_own) <= limits.max_waiters + 1
        is_kept = self._leaves or not self._closed
        assert is_kept or not self.count(*WARM), "a closed pool keeps free sandboxes"
        least = 0 if self._draining else limits.min_size
        assert least <= self.spare <= max(limits.min_size, limits.max_size), self.spare

    # The rules.

    def _assign_and_launch(self) -> list[Action]:
        """Assign idle sandboxes to waiters, remove one that is too old, launch what is missing."""
        actions: list[Action] = []
        while self._sandboxes.idle and (waiter := self._next_waiter()) is not None:
            sandbox_id = self._sandboxes.idle[0]
            self._sandboxes.move(sandbox_id, SandboxState.LEASED)
            actions.append(Assign(waiter, sandbox_id))
        if (old := self._expired()) is not None and self._may_expire():
            actions.append(self._remove(old))
        while self.count() < self.limits.max_size:
            if self._owes_place():
                actions.append(self._give_place())
            elif self._wants_launch():
                sandbox_id = self._new_id()
                self._sandboxes.add(sandbox_id)
                self._own_is_next = True
                actions.append(Launch(sandbox_id))
            else:
                break
        needs_room = self.own_waiters and not self._closed
        if needs_room and self._sandboxes.idle and not self.count(SandboxState.REMOVING):
            actions.append(self._remove(self._sandboxes.idle[0]))
        return actions

    def _next_waiter(self) -> int | None:
        return self._urgent.popleft() if self._urgent else self._waiting.take()

    def _wants_launch(self) -> bool:
        replacement = self._expired() is not None
        return self._may_launch() and self.count(*FREE) < self.waiters + self.spare + replacement

    def _may_launch(self) -> bool:
        starting = self.count(SandboxState.STARTING)
        return not (self._closed or self.back_off) and starting < self.limits.max_launches

    def _is_taken(self) -> bool:
        """Whether there is no place, and no free sandbox that could make room."""
        full = self.count() >= self.limits.max_size
        return self._closed or (full and not self._sandboxes.idle)

    def _owes_place(self) -> bool:
        """Whether the next place is for a sandbox of a waiter's own."""
        if self._closed or not self.own_waiters:
            return False
        if not self._may_launch() or self.count(*FREE) >= self.waiters:  # nobody else needs it
            return True
        if bool(self._urgent) != bool(self._urgent_own):
            return bool(self._urgent_own)
        return self._own_is_next

    def _give_place(self) -> Place:
        urgent = self._urgent_own.popleft() if self._urgent_own else None
        waiter = self._waiting_own.take() if urgent is None else urgent
        assert waiter is not None
        sandbox_id = self._new_id()
        self._sandboxes.add(sandbox_id)
        self._sandboxes.mark_healthy(sandbox_id, self._now)
        self._sandboxes.move(sandbox_id, SandboxState.LEASED)
        self._own_is_next = False
        return Place(waiter, sandbox_id)

    def _expired(self) -> str | None:
        """The oldest idle sandbox if it is too old. Sandboxes are replaced one after another."""
        if not self._sandboxes.idle or not self.limits.container_ttl or self._draining:
            return None
        oldest = min(self._sandboxes.idle, key=self._sandboxes.warm_at)
        age = self._now - self._sandboxes.warm_at(oldest)
        return oldest if age >= self.limits.container_ttl else None

    def _may_expire(self) -> bool:
        """Whether the one that is too old may be removed: its replacement is warm, or needs its room."""
        if self.count(*WARM) > self.spare:
            return True
        in_transition = self.count(SandboxState.STARTING, SandboxState.REMOVING)
        full = self.count() >= self.limits.max_size
        return full and not in_transition and not self.back_off

    def _scale(self) -> list[Action]:
        """Change the number of free sandboxes if the load has been high or low for long enough."""
        # If launches fail, a higher target does not help.
        due = self._autoscaler.step(self.load, self._now, may_grow=not self.failures)
        idle = self._sandboxes.idle
        if due is Load.LOW and idle and self.count(*FREE) > self.spare:
            return [self._remove(idle[0])]
        return []

    def _check_next(self) -> list[Action]:
        """Check one sandbox at a time: an overloaded machine must not lose all of them at once."""
        if not self._sandboxes.idle or not self.limits.health_check_interval:
            return []
        next_ = min(self._sandboxes.idle, key=self._sandboxes.healthy_at)
        due = self._sandboxes.healthy_at(next_) + self.limits.health_check_interval
        if self._now < due or self.count(SandboxState.CHECKING):
            return []
        self._sandboxes.move(next_, SandboxState.CHECKING)
        return [Check(next_)]

    def _remove(self, sandbox_id: str) -> Remove:
        self._sandboxes.move(sandbox_id, SandboxState.REMOVING)
        return Remove(sandbox_id)
