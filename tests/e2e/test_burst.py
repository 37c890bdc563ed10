"""More concurrent openings than a pool can serve: each succeeds or is refused, and none hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import kernelbroker
import pytest

from tests.backends.probes import JAILS_FIRST
from tests.e2e.support import BrokerProcess, call, opened, running_broker, until

pytestmark = pytest.mark.sandbox

SESSIONS, POOL, WAITERS, WARM = 24, 5, 7, 2
BURST_S = 180.0
"""Far more than needed: the test checks that no client waits forever."""


@pytest.fixture(params=JAILS_FIRST)
def small(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker whose pool is full at five."""
    with running_broker(
        BACKEND=request.param,
        POOL__MIN_SIZE=WARM,
        POOL__MAX_SIZE=POOL,
        POOL__MAX_WAITERS=WAITERS,
        POOL__ACQUIRE_TIMEOUT=10,
        SANDBOX__MEMORY="300MiB",
        SESSIONS__DEFAULT_TIMEOUT=60,
    ) as broker:
        yield broker


async def over_websocket(client: kernelbroker.Broker, number: int) -> int:
    """The HTTP status that stands for how it went."""
    try:
        async with client.session() as session:
            result = await session.run(f"print({number} * 2)")
    except (kernelbroker.TooManyRequests, kernelbroker.Unavailable) as told:
        assert told.retry_after
        return 429 if isinstance(told, kernelbroker.TooManyRequests) else 503
    assert result.stdout == f"{number * 2}\n", result.error
    return 200


async def over_http(broker: BrokerProcess, number: int) -> int:
    body = {"code": f"print({number} * 2)"}
    async with opened(broker, "POST", "/api/v1/exec", body, accept="text/plain") as answer:
        text = await answer.rest()
        if answer.status == 200:
            whole = text.replace(b"</txt>\n<txt>", b"")  # the line's end may come by itself
            assert whole.startswith(f"<txt>{number * 2}\n".encode()), text
        else:
            assert answer.status in (429, 503), text
            assert int(answer.headers["Retry-After"]) >= 1
        return answer.status


async def test_every_opening_of_a_burst_ends(small: BrokerProcess) -> None:
    """Of many sessions opened at once each runs its cell, or gets 429 or 503; the pool recovers."""

    async def peaceful() -> bool:
        _, status = await call(small, "GET", "/api/v1/pool/status")
        assert status["total_containers"] <= POOL
        busy = status["busy_containers"] + status["pending_requests"]
        return not busy and status["idle_containers"] >= WARM

    await until(peaceful)
    async with kernelbroker.connect(small.url, small.token, timeout=BURST_S) as client:
        async with asyncio.timeout(BURST_S), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(over_http(small, n) if n % 2 else over_websocket(client, n))
                for n in range(SESSIONS)
            ]
        outcomes = Counter(task.result() for task in tasks)
        assert outcomes[200] >= WARM, outcomes  # those that were warm, at the least
        assert outcomes[429] >= 1, outcomes
        assert sum(outcomes.values()) == SESSIONS
        await until(peaceful)
        async with client.session() as session:
            assert (await session.run("print(1)")).stdout == "1\n"
    await until(peaceful)
