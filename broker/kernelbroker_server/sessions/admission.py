"""Decides how many executions run at once, how many may wait, and which tenant's runs next.

There is one `Admission` for the broker and one `TenantQueue` for each tenant. Waiting tenants take turns,
so none can starve another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from kernelbroker.protocol.errors import TooManyRequests, Unavailable

from ..fair_queue import FairQueue
from ..tenants.rate_limiter import RateLimiter
from ..tenants.tenant import Tenant


class Admission:
    """The broker's limits on executions.

    Args:
        max_concurrent: executions that run at once, over all tenants.
        max_queued: executions of one tenant that may wait.
        clock: seconds of a monotonic clock.

    Attributes:
        closed: whether new executions are refused.
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
        self._free_slots = max_concurrent
        self._queues: dict[str, TenantQueue] = {}
        self._waiters: FairQueue[_Waiter] = FairQueue()

    def queue_of(self, tenant: Tenant) -> TenantQueue:
        """The tenant's queue, the same object on every call."""
        if tenant.name not in self._queues:
            self._queues[tenant.name] = TenantQueue(self, tenant)
        return self._queues[tenant.name]

    @property
    def waiting(self) -> int:
        """Executions that were admitted and do not run yet."""
        return sum(queue.waiting for queue in self._queues.values())

    @property
    def running(self) -> int:
        """Executions that hold a slot."""
        return sum(queue.running for queue in self._queues.values())

    def close(self) -> None:
        """Refuse new executions. Those that wait or run go on."""
        self.closed = True

    # For TenantQueue.

    async def acquire_slot(self, queue: TenantQueue, *, at_once: bool) -> None:
        """Wait until an admitted execution of this tenant may run. A cancelled caller has withdrawn."""
        if at_once:
            self._assign_slot(queue)
            return
        if self._free_slots > 0 and self._may_run(queue.tenant):  # then no other waiter may run
            self._waiters.note_served(queue.tenant)
            self._assign_slot(queue)
            return
        waiter = _Waiter(queue, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter, queue.tenant)
        try:
            # Unlike `await waiter.assigned`, this leaves the future alone when the caller is cancelled.
            await asyncio.wait([waiter.assigned])
        except asyncio.CancelledError:
            if waiter.assigned.done():  # in the same turn of the event loop
                self.release_slot(queue)
            else:
                self._waiters.remove(waiter)
                queue.withdraw()
            raise

    def release_slot(self, queue: TenantQueue) -> None:
        """Give a slot back, to the next waiter if there is one."""
        queue.running -= 1
        self._free_slots += 1
        self.assign_slots()

    def assign_slots(self) -> None:
        """Give free slots to waiters that may run."""
        while self._free_slots > 0 and (waiter := self._waiters.take(self._may_run)) is not None:
            self._assign_slot(waiter.queue)
            waiter.assigned.set_result(None)

    def _assign_slot(self, queue: TenantQueue) -> None:
        self._free_slots -= 1
        queue.waiting -= 1
        queue.running += 1

    def _may_run(self, tenant: str) -> bool:
        queue = self._queues[tenant]
        running = queue.running + queue.running_elsewhere
        return queue.max_running is None or running < queue.max_running


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """An admitted execution that asked for a slot; `assigned` is done when it has one."""

    queue: TenantQueue
    assigned: asyncio.Future[None]


class TenantQueue:
    """The executions of one tenant: admitted when they are accepted, given a slot when they run.

    Slots are given in the order in which they are asked for. Each admitted execution must either use
    `slot` or `withdraw`.

    Attributes:
        tenant: its name.
        clock: that of the `Admission`.
        waiting, running: how many executions of this tenant wait and run.
        max_running: how many may run at once; None if only the broker's limit applies.
        running_elsewhere: how many run at other brokers that share the store.
        taken: how many requests were counted against the rate here.
    """

    def __init__(self, admission: Admission, tenant: Tenant) -> None:
        self.tenant = tenant.name
        self.clock = admission.clock
        self.waiting = 0
        self.running = 0
        self.running_elsewhere = 0
        self.taken = 0
        self.max_running = tenant.limits.concurrent
        self._admission = admission
        rate = tenant.limits.rate
        self._rate = None if rate is None else RateLimiter(rate, admission.clock)

    def require_capacity(self) -> None:
        """Raise what `admit` would raise now. Takes nothing.

        Raises:
            TooManyRequests, Unavailable
        """
        if self._admission.closed:
            raise Unavailable("the broker is shutting down", retry_after=10)
        if self.waiting >= self._admission.max_queued:
            raise TooManyRequests(
                f"{self.waiting} executions are waiting; try again when some have ended",
                retry_after=1,
            )
        self._require_rate()

    def admit(self) -> None:
        """Accept one execution, which waits from now on.

        Raises:
            TooManyRequests: too many are waiting, or the tenant's rate is used up.
            Unavailable: the broker is shutting down.
        """
        self.require_capacity()
        self.take_rate()
        self.waiting += 1

    def readmit(self) -> None:
        """Accept an execution that an earlier broker has accepted."""
        self.waiting += 1

    def withdraw(self) -> None:
        """Give up an admitted execution that has not asked for a slot."""
        self.waiting -= 1

    def take_rate(self) -> None:
        """Count one request against the tenant's rate, without admitting an execution.

        Raises:
            TooManyRequests: the rate is used up.
        """
        self._require_rate()
        self.taken += 1
        if self._rate is not None:
            self._rate.take()

    def note_elsewhere(self, running: int, taken: int) -> None:
        """Count what the tenant does at other brokers.

        Args:
            running: how many executions run there now.
            taken: how many more requests were counted against its rate there.
        """
        self.running_elsewhere = running
        if self._rate is not None and taken > 0:
            self._rate.charge(taken)
        self._admission.assign_slots()

    @contextlib.asynccontextmanager
    async def slot(self, *, at_once: bool = False) -> AsyncIterator[None]:
        """Run an admitted execution in the block: waits for a slot, and gives it back at the end.

        If the caller is cancelled while it waits, the execution is withdrawn.

        Args:
            at_once: it runs already, whether there is a free slot or not.
        """
        await self._admission.acquire_slot(self, at_once=at_once)
        try:
            yield
        finally:
            self._admission.release_slot(self)

    def _require_rate(self) -> None:
        if self._rate is not None and (delay := self._rate.delay()):
            raise TooManyRequests(
                f"at most {self._rate.per_minute:g} executions a minute are allowed; slow down",
                retry_after=delay,
            )
