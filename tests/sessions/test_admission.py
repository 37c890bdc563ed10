"""Admission of executions: the limits on running and waiting ones, and their order."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker.protocol.errors import TooManyRequests, Unavailable
from kernelbroker_server.sessions.admission import Admission, TenantQueue
from kernelbroker_server.sessions.ids import new_id
from kernelbroker_server.tenants.tenant import DEFAULT, Tenant, TenantLimits

from tests.support.waiting import DEADLINE_S, turns


async def test_slots_are_given_in_order_of_asking() -> None:
    """At most `max_concurrent` executions run at once, in the order in which they asked."""
    queue = Admission(2, 10).queue_of(DEFAULT)
    order: list[int] = []
    most = 0

    async def run(number: int) -> None:
        nonlocal most
        async with queue.slot():
            order.append(number)
            most = max(most, queue.running)
            await turns(3)

    for _ in range(6):
        queue.admit()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(run, range(6)))
    assert order == list(range(6))
    assert most == 2
    assert (queue.waiting, queue.running) == (0, 0)


def test_a_full_queue_refuses_executions() -> None:
    """An execution beyond `max_queued` is refused with `retry_after`, and nothing changes."""
    queue = Admission(1, 2).queue_of(DEFAULT)
    queue.admit()
    queue.admit()
    with pytest.raises(TooManyRequests) as refused:
        queue.admit()
    assert refused.value.retry_after
    assert queue.waiting == 2
    queue.withdraw()
    queue.admit()


async def test_a_cancelled_execution_gives_its_slot_back() -> None:
    """A slot that is given up at any moment, waiting or running, goes to the next waiter."""
    cancelled, count = True, 0
    while cancelled:  # until both have ended before the cancellation
        count += 1
        queue = Admission(1, 10).queue_of(DEFAULT)

        async def run(queue: TenantQueue = queue) -> None:
            async with queue.slot():
                await turns(3)

        for _ in range(4):
            queue.admit()
        tasks = [asyncio.create_task(run()) for _ in range(3)]
        await turns(count)
        for task in tasks[:2]:
            task.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(tasks)
            await run()
        cancelled = any(task.cancelled() for task in tasks[:2])
        assert not tasks[2].cancelled()
        assert (queue.waiting, queue.running) == (0, 0)
    assert count > 5


async def test_a_slot_assigned_to_a_cancelled_caller_is_given_back() -> None:
    """A slot that is assigned in the turn in which its caller is cancelled goes to the next waiter."""
    admission = Admission(1, 10)
    queue = admission.queue_of(DEFAULT)

    async def run() -> None:
        async with queue.slot():
            await turns(1)

    for _ in range(3):
        queue.admit()
    async with queue.slot():
        leaving, staying = asyncio.create_task(run()), asyncio.create_task(run())
        await turns(1)
    assert queue.running == 1, "the slot is assigned to the first waiter, which has not run yet"
    leaving.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([leaving, staying])
    assert leaving.cancelled()
    assert not staying.cancelled()
    assert (admission.waiting, admission.running) == (0, 0)


async def test_the_rate_can_be_used_without_an_execution() -> None:
    """Requests that run no cell share the tenant's rate with its executions."""
    now = 0.0
    admission = Admission(1, 10, clock=lambda: now)
    queue = admission.queue_of(Tenant("acme", TenantLimits(rate=2)))
    queue.take_rate()
    queue.admit()
    for refused in (queue.take_rate, queue.admit, queue.require_capacity):
        with pytest.raises(TooManyRequests) as raised:
            refused()
        assert raised.value.retry_after == pytest.approx(30)
    assert queue.waiting == 1
    now += 31
    queue.take_rate()
    unlimited = admission.queue_of(DEFAULT)
    for _ in range(100):
        unlimited.take_rate()


async def test_a_failing_block_gives_its_slot_back() -> None:
    """A slot is released when its block raises."""
    queue = Admission(1, 1).queue_of(DEFAULT)
    for _ in range(3):
        queue.admit()
        with pytest.raises(ZeroDivisionError):
            async with queue.slot():
                raise ZeroDivisionError
    assert (queue.waiting, queue.running) == (0, 0)


def test_ids_are_unique_and_long() -> None:
    """Ids are unique, and too long to be guessed."""
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert min(map(len, ids)) >= 24


async def test_waiting_tenants_take_turns() -> None:
    """Waiting tenants take turns, regardless of their numbers of executions."""
    admission = Admission(1, 100)
    order: list[str] = []

    async def run(name: str) -> None:
        async with admission.queue_of(Tenant(name)).slot():
            order.append(name)
            await turns(2)

    names = ["a"] * 5 + ["b"] * 2 + ["c"]
    for name in names:
        admission.queue_of(Tenant(name)).admit()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(run, names))
    assert order == ["a", "b", "c", "a", "b", "a", "a", "a"]
    assert (admission.waiting, admission.running) == (0, 0)


async def test_a_tenant_has_its_own_limit() -> None:
    """A tenant with a limit of its own leaves the other slots to other tenants."""
    admission = Admission(3, 100)
    small, large = Tenant("small", TenantLimits(concurrent=1)), Tenant("large")
    most = {"small": 0, "large": 0}

    async def run(tenant: Tenant) -> None:
        async with admission.queue_of(tenant).slot():
            queue = admission.queue_of(tenant)
            most[tenant.name] = max(most[tenant.name], queue.running)
            await turns(3)

    tenants = [small] * 4 + [large] * 4
    for tenant in tenants:
        admission.queue_of(tenant).admit()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(run, tenants))
    assert most == {"small": 1, "large": 2}
    assert (admission.waiting, admission.running) == (0, 0)


async def test_a_closed_admission_refuses_executions() -> None:
    """A closed admission refuses new executions; those that were admitted go on."""
    admission = Admission(1, 10)
    queue = admission.queue_of(DEFAULT)
    queue.admit()
    queue.admit()
    admission.close()
    with pytest.raises(Unavailable):
        queue.admit()
    async with queue.slot():
        assert (queue.waiting, queue.running) == (1, 1)
    queue.withdraw()
    assert (admission.waiting, admission.running) == (0, 0)
