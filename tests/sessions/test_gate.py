"""How many run at once, and how many wait."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker.protocol.errors import TooManyRequests, Unavailable
from kernelbroker_server.sessions.gate import Door, Gate
from kernelbroker_server.tenants.tenant import DEFAULT, Tenant, TenantLimits

from tests.support.waiting import DEADLINE_S, turns


async def test_turns_in_order() -> None:
    """No more run at once than may, in the order of their asking."""
    gate = Gate(2, 10).of(DEFAULT)
    order: list[int] = []
    most = 0

    async def run(number: int) -> None:
        nonlocal most
        async with gate.turn():
            order.append(number)
            most = max(most, gate.running)
            await turns(3)

    for _ in range(6):
        gate.enter()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(run, range(6)))
    assert order == list(range(6))
    assert most == 2
    assert (gate.waiting, gate.running) == (0, 0)


def test_queue_is_bounded() -> None:
    """Who comes when as many wait as may is told to come again, and changes nothing."""
    gate = Gate(1, 2).of(DEFAULT)
    gate.enter()
    gate.enter()
    with pytest.raises(TooManyRequests) as refused:
        gate.enter()
    assert refused.value.retry_after
    assert gate.waiting == 2
    gate.leave()
    gate.enter()


@pytest.mark.parametrize("count", range(1, 9))
async def test_cancelled_anywhere(count: int) -> None:
    """A turn that is given up at any moment, waiting or running, is there for the next."""
    gate = Gate(1, 10).of(DEFAULT)

    async def run() -> None:
        async with gate.turn():
            await turns(3)

    for _ in range(4):
        gate.enter()
    tasks = [asyncio.create_task(run()) for _ in range(3)]
    await turns(count)
    for task in tasks[:2]:
        task.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait(tasks)
        await run()
    assert not tasks[2].cancelled()
    assert (gate.waiting, gate.running) == (0, 0)


async def test_a_cell_that_fails_gives_back_its_turn() -> None:
    """A turn ends with its block, however that ends."""
    gate = Gate(1, 1).of(DEFAULT)
    for _ in range(3):
        gate.enter()
        with pytest.raises(ZeroDivisionError):
            async with gate.turn():
                raise ZeroDivisionError
    assert (gate.waiting, gate.running) == (0, 0)


def test_ids() -> None:
    """Ids are new each time, and long enough that nobody guesses one."""
    ids = {Door.new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert min(map(len, ids)) >= 24


async def test_tenants_take_turns() -> None:
    """Whatever each one's line is, each tenant that waits has the next turn but those of the others."""
    gate = Gate(1, 100)
    order: list[str] = []

    async def run(name: str) -> None:
        async with gate.of(Tenant(name)).turn():
            order.append(name)
            await turns(2)

    names = ["a"] * 5 + ["b"] * 2 + ["c"]
    for name in names:
        gate.of(Tenant(name)).enter()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(run, names))
    assert order == ["a", "b", "c", "a", "b", "a", "a", "a"]
    assert (gate.waiting, gate.running) == (0, 0)


async def test_a_tenants_own_bound() -> None:
    """No more of a tenant's run at once than it may have; the rest of the gate is for others."""
    gate = Gate(3, 100)
    small, large = Tenant("small", TenantLimits(concurrent=1)), Tenant("large")
    most = {"small": 0, "large": 0}

    async def run(tenant: Tenant) -> None:
        async with gate.of(tenant).turn():
            door = gate.of(tenant)
            most[tenant.name] = max(most[tenant.name], door.running)
            await turns(3)

    tenants = [small] * 4 + [large] * 4
    for tenant in tenants:
        gate.of(tenant).enter()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(run, tenants))
    assert most == {"small": 1, "large": 2}
    assert (gate.waiting, gate.running) == (0, 0)


async def test_closed() -> None:
    """A gate that is closed lets nobody in; what was in goes on."""
    gate = Gate(1, 10)
    door = gate.of(DEFAULT)
    door.enter()
    door.enter()
    gate.close()
    with pytest.raises(Unavailable):
        door.enter()
    async with door.turn():
        assert (door.waiting, door.running) == (1, 1)
    door.leave()
    assert (gate.waiting, gate.running) == (0, 0)
