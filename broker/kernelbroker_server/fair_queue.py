"""A queue of waiters that is fair to tenants. No I/O.

Tenants take turns. Within a tenant, waiters are served in order of arrival. Sandboxes (`pool.state`) and
slots to run an execution (`sessions.admission`) are both handed out by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiters by tenant. The next one is of the tenant that was served least recently.

    So while a tenant waits, every other tenant is served at most once. The time of service is remembered
    for each tenant ever served, which is one number each.
    """

    def __init__(self) -> None:
        self._waiters: dict[str, deque[T]] = {}
        self._served_at: dict[str, int] = {}
        self._serial = count(1)

    def __len__(self) -> int:
        return sum(map(len, self._waiters.values()))

    def add(self, waiter: T, tenant: str) -> None:
        """Put a waiter behind the others of its tenant."""
        self._waiters.setdefault(tenant, deque()).append(waiter)

    def take(self, may_take: Callable[[str], bool] = lambda _: True) -> T | None:
        """Remove and return the next waiter.

        Args:
            may_take: whether a tenant may be served now; one that may not keeps its place.

        Returns:
            None if no tenant that may be served has a waiter.
        """
        tenants = filter(may_take, self._waiters)
        tenant = min(tenants, key=lambda name: self._served_at.get(name, 0), default=None)
        if tenant is None:
            return None
        waiter = self._waiters[tenant].popleft()
        self.note_served(tenant)
        self._remove_if_empty(tenant)
        return waiter

    def note_served(self, tenant: str) -> None:
        """Record that a tenant was served without waiting."""
        self._served_at[tenant] = next(self._serial)

    def remove(self, waiter: T) -> None:
        """Remove a waiter that gave up; does nothing if it is not in the queue."""
        for tenant, waiters in self._waiters.items():
            if waiter in waiters:
                waiters.remove(waiter)
                self._remove_if_empty(tenant)
                return

    def order(self) -> list[tuple[str, int]]:
        """The tenants that wait, the next to be served first, each with the number of its waiters."""
        tenants = sorted(self._waiters, key=lambda name: self._served_at.get(name, 0))
        return [(name, len(self._waiters[name])) for name in tenants]

    def evict_for(self, tenant: str) -> T | None:
        """Remove and return the waiter that a full queue drops to make room for one of `tenant`.

        It is the latest waiter of the tenant with the most waiters.

        Returns:
            None if that tenant would not have more waiters than `tenant` afterwards: then the newcomer
            must be refused.
        """
        most = max(self._waiters, key=lambda name: len(self._waiters[name]), default=tenant)
        if len(self._waiters.get(tenant, ())) + 1 >= len(self._waiters.get(most, ())):
            return None
        waiter = self._waiters[most].pop()
        self._remove_if_empty(most)
        return waiter

    def _remove_if_empty(self, tenant: str) -> None:
        if not self._waiters[tenant]:
            del self._waiters[tenant]
