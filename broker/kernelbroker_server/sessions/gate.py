"""How many executions may run at once and how many may wait, and whose turn is next.

One gate for the broker, and a door in it for each tenant. Tenants that wait take turns, whatever each
one's line is, so that none can starve another.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from kernelbroker.protocol.errors import TooManyRequests, Unavailable

from ..tenants.tenant import Tenant


class Gate:
    """
    Args:
        max_concurrent: executions that run at once, over all tenants.
        max_queued: executions of one tenant that may wait.
        clock: the time in seconds, from any beginning.
    """

    def __init__(
        self,
        max_concurrent: int,
        max_queued: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_queued = max_queued
        self.clock = clock
        self.closed = False
        self._free = max_concurrent
        self._doors: dict[str, Door] = {}
        self._next: deque[Door] = deque()
        """Each door once; the one whose turn is next comes first."""

    def of(self, tenant: Tenant) -> Door:
        """The tenant's door, the same each time."""
        if tenant.name not in self._doors:
            door = self._doors[tenant.name] = Door(self, tenant)
            self._next.append(door)
        return self._doors[tenant.name]

    @property
    def waiting(self) -> int:
        return sum(door.waiting for door in self._doors.values())

    @property
    def running(self) -> int:
        return sum(door.running for door in self._doors.values())

    def close(self) -> None:
        """Nothing enters any more; what waits and runs goes on."""
        self.closed = True

    def settle(self) -> None:
        """Give what turns are free to those who wait, one tenant after the other."""
        turned_away = 0
        while self._free and turned_away < len(self._next):
            door = self._next[0]
            self._next.rotate(-1)
            if door.admit():
                self._free -= 1
                turned_away = 0
            else:
                turned_away += 1

    def free_one(self) -> None:
        """A turn has ended."""
        self._free += 1
        self.settle()


class Door:
    """One tenant's way in. An execution enters when it is accepted and has its turn when it runs.

    A tenant's turns are given in order of asking. Each execution that entered takes a turn or leaves.

    Attributes:
        tenant: its name.
        clock: that of the gate.
        waiting, running: executions of this tenant.
    """

    def __init__(self, gate: Gate, tenant: Tenant) -> None:
        self.waiting = 0
        self.running = 0
        self._gate = gate
        self.tenant = tenant.name
        self.clock = gate.clock
        self._limits = tenant.limits
        self._line: deque[asyncio.Future[None]] = deque()
        rate = tenant.limits.rate
        self._bucket = None if rate is None else _Bucket(rate, gate.clock)

    def expect_room(self) -> None:
        """Raise what `enter` would at this moment; nothing is taken."""
        if self._gate.closed:
            raise Unavailable("the broker is shutting down", retry_after=10)
        if self.waiting >= self._gate.max_queued:
            raise TooManyRequests(
                f"{self.waiting} executions are waiting; try again when some have ended",
                retry_after=1,
            )
        if self._bucket is not None and (pause := self._bucket.pause()):
            raise TooManyRequests(
                f"{self._limits.rate:g} executions a minute are allowed; slow down",
                retry_after=pause,
            )

    def enter(self) -> None:
        """Raises TooManyRequests where too many are waiting or came lately; Unavailable at the end."""
        self.expect_room()
        if self._bucket is not None:
            self._bucket.take()
        self.waiting += 1
        self._gate.settle()

    def leave(self) -> None:
        """Give up without a turn."""
        self.waiting -= 1
        self._gate.settle()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._gate.settle()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._line.remove(place)
                self.leave()
            else:  # it came in this very moment
                self._end()
            raise
        try:
            yield
        finally:
            self._end()

    def admit(self) -> bool:
        """Let the first of the line in, if there is one and it may run; for the gate to call."""
        limit = self._limits.concurrent
        if not self._line or (limit is not None and self.running >= limit):
            return False
        place = self._line.popleft()
        if place.cancelled():  # its task will find out in its own time
            self._line.appendleft(place)
            return False
        place.set_result(None)
        self.waiting -= 1
        self.running += 1
        return True

    def _end(self) -> None:
        self.running -= 1
        self._gate.free_one()

    @staticmethod
    def new_id() -> str:
        """An id that nobody can guess, for an execution or a session."""
        return secrets.token_hex(12)


class _Bucket:
    """A token bucket: a minute's worth may come at once, then as many as flow in."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._rate = per_minute / 60
        self._size = max(1.0, per_minute)
        self._clock = clock
        self._level = self._size
        self._at = clock()

    def pause(self) -> float:
        """0 where one can be taken; else the seconds until one can."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, 1 - self._level) / self._rate

    def take(self) -> None:
        """Where `pause` is 0."""
        self._level -= 1
