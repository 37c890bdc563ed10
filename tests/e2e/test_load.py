"""Many sessions at once: each has its own results, and nothing is left afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import kernelbroker
import pytest
from kernelbroker_server.machine_memory import default_pool_size

from tests.e2e.support import BrokerProcess, running_broker, until, whole_system

pytestmark = whole_system

SESSIONS, CELLS, WARM = 10, 20, 1


@pytest.fixture
def large() -> Iterator[BrokerProcess]:
    with running_broker(
        POOL__MIN_SIZE=WARM,
        POOL__MAX_SIZE=SESSIONS,
        POOL__ACQUIRE_TIMEOUT=180,
        POOL__SCALE_UP_THRESHOLD=1000,  # the pool shrinks again, but not in a test's time
        SANDBOX__MEMORY="400MiB",
        SESSIONS__DEFAULT_TIMEOUT=120,
    ) as broker:
        yield broker


async def work(client: kernelbroker.Broker, number: int) -> None:
    async with client.session() as session:
        for cell in range(CELLS):
            said: list[str] = []
            mark = f"{number}/{cell}"
            result = await session.run(
                f"count = globals().get('count', 0) + 1\nprint('{mark}', count)\n"
                f"answer = [{number}, {cell}, count]",
                result_var="answer",
                on_stdout=said.append,
            )
            assert result.success, result.error
            assert "".join(said) == result.stdout == f"{mark} {cell + 1}\n"
            assert result.return_value == [number, cell, cell + 1]


async def test_sessions_do_not_mix(large: BrokerProcess) -> None:
    """Ten sessions of twenty cells each run at once, and none sees data of another."""

    async def only_warm_ones() -> bool:
        status = await client.pool_status()
        return (status["total_containers"], status["idle_containers"]) == (WARM, WARM)

    async with kernelbroker.connect(large.url, large.token, timeout=200) as client:
        await until(only_warm_ones)
        processes = len(large.family())
        async with asyncio.TaskGroup() as group:
            for number in range(SESSIONS):
                group.create_task(work(client, number))
        await until(only_warm_ones)
        # What is left belongs to the sandboxes that are kept warm, and to no others.
        await until(lambda: len(large.family()) <= processes, lambda: large.family())
        left = large.sandboxes()
        assert len(left["directories"]) == WARM
        assert left["directories"] == left["sockets"] == left["cgroups"]
        health = await client.health()
        assert health["sessions"] == 0
        assert health["last_launch_failure"] is None


async def test_as_many_sessions_as_memory_allows_are_held_at_once() -> None:
    """With default settings twenty sessions, or as many as there is memory for, are served at once."""
    count = min(20, default_pool_size())
    with running_broker(SESSIONS__DEFAULT_TIMEOUT=120) as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token, timeout=120) as client,
            AsyncExitStack() as held,
        ):

            async def one(number: int) -> str:
                session = await held.enter_async_context(client.session())
                code = f"import pandas; print(pandas.Series([{number}, 1]).sum())"
                return (await session.run(code)).stdout

            answers = await asyncio.gather(*map(one, range(count)))
            assert answers == [f"{number + 1}\n" for number in range(count)]
            assert (await client.pool_status())["busy_containers"] == count
