"""Who waits for a sandbox: tenants take turns, and of each tenant whoever came first. No I/O."""

from __future__ import annotations

from collections import OrderedDict, deque


class Line:
    """Waiters by tenant; the tenant whose turn is next comes first. A tenant that joins is the last."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, deque[int]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    def add(self, waiter: int, tenant: str) -> None:
        self._by_tenant.setdefault(tenant, deque()).append(waiter)

    def take(self) -> int:
        """The next one, out of the line."""
        tenant, own = next(iter(self._by_tenant.items()))
        waiter = own.popleft()
        self._by_tenant.move_to_end(tenant)
        self._tidy(tenant)
        return waiter

    def remove(self, waiter: int) -> None:
        """Does nothing where it is not in the line."""
        for tenant, own in list(self._by_tenant.items()):
            if waiter in own:
                own.remove(waiter)
                self._tidy(tenant)

    def give_way(self, tenant: str) -> int | None:
        """Who has to leave a full line for another one of this tenant; None where that one has to go.

        It is the latest of the tenant that has most, if that one has more, also afterwards.
        """
        most = max(self._by_tenant, key=lambda name: len(self._by_tenant[name]), default=tenant)
        if len(self._by_tenant.get(tenant, ())) + 1 >= len(self._by_tenant.get(most, ())):
            return None
        waiter = self._by_tenant[most].pop()
        self._tidy(most)
        return waiter

    def _tidy(self, tenant: str) -> None:
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
