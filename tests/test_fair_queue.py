"""The queue that is fair to tenants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.fair_queue import FairQueue

ARRIVALS = st.lists(st.sampled_from("abc"), max_size=30)


def drain(queue: FairQueue[tuple[str, int]]) -> list[tuple[str, int]]:
    served = []
    while (waiter := queue.take()) is not None:
        served.append(waiter)
    return served


@given(ARRIVALS)
def test_waiters_of_one_tenant_are_served_in_order_of_arrival(arrivals: list[str]) -> None:
    """Every waiter is served once, those of a tenant in the order in which they came."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number, tenant in enumerate(arrivals):
        queue.add((tenant, number), tenant)
    assert len(queue) == len(arrivals)
    served = drain(queue)
    assert sorted(served, key=lambda waiter: waiter[1]) == [
        (tenant, number) for number, tenant in enumerate(arrivals)
    ]
    for name in "abc":
        numbers = [number for tenant, number in served if tenant == name]
        assert numbers == sorted(numbers)


@given(ARRIVALS)
def test_no_tenant_is_served_twice_while_another_waits(arrivals: list[str]) -> None:
    """Tenants take turns, however many waiters each of them has."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number, tenant in enumerate(arrivals):
        queue.add((tenant, number), tenant)
    order = [tenant for tenant, _ in drain(queue)]
    for name in set(arrivals):
        turns = [index for index, tenant in enumerate(order) if tenant == name]
        for start, end in zip([-1, *turns], turns, strict=False):
            between = order[start + 1 : end]
            assert len(between) == len(set(between)), order


def test_a_tenant_that_asks_one_by_one_goes_behind_those_that_wait() -> None:
    """A tenant that was just served is behind a tenant that joins later."""
    queue: FairQueue[str] = FairQueue()
    queue.add("a1", "a")
    assert queue.take() == "a1"
    queue.add("a2", "a")
    queue.add("b1", "b")
    assert [queue.take(), queue.take(), queue.take()] == ["b1", "a2", None]


def test_a_tenant_that_may_not_be_served_keeps_its_place() -> None:
    """`may_take` skips a tenant for this time only."""
    queue: FairQueue[str] = FairQueue()
    queue.add("a1", "a")
    queue.add("b1", "b")
    assert queue.take(lambda tenant: tenant != "a") == "b1"
    assert queue.take(lambda tenant: tenant != "a") is None
    assert queue.take() == "a1"


def test_a_removed_waiter_is_not_served() -> None:
    """Removing a waiter that is not in the queue does nothing."""
    queue: FairQueue[str] = FairQueue()
    queue.add("a1", "a")
    queue.add("a2", "a")
    queue.remove("a1")
    queue.remove("a1")
    assert [queue.take(), queue.take()] == ["a2", None]


def test_a_full_queue_drops_the_latest_waiter_of_the_tenant_with_the_most() -> None:
    """A tenant makes room only for a tenant that has fewer waiters."""
    queue: FairQueue[str] = FairQueue()
    for waiter in ("a1", "a2", "a3"):
        queue.add(waiter, "a")
    assert queue.evict_for("a") is None
    assert queue.evict_for("b") == "a3"
    queue.add("b1", "b")
    assert queue.evict_for("b") is None
    assert FairQueue[str]().evict_for("a") is None
