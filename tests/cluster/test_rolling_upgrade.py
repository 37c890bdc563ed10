"""Three brokers are replaced one after the other under load: nobody is refused, and nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import kernelbroker

from tests.cluster.support import TOKEN, Brokers, RoundRobin
from tests.e2e.support import whole_system

pytestmark = whole_system

LINES = 30
CELL = f"""
import time
x = globals().get("x", 0) + 1
for i in range({LINES}):
    print(x, i, flush=True)
    time.sleep(0.01)
"""


async def use_a_session(url: str, name: str, stop: asyncio.Event) -> int:
    """Run cells in one session, over WebSockets; returns how many. Each line comes once and in order."""
    async with (
        kernelbroker.connect(url, TOKEN) as client,
        client.session(name, keep=True) as session,
    ):
        count = 0
        while not stop.is_set():
            count += 1
            result = await session.run(CELL)
            assert result.success, result
            assert result.stdout.splitlines() == [f"{count} {i}" for i in range(LINES)]
        return count


async def use_rest(url: str, name: str, stop: asyncio.Event) -> int:
    """Send REST requests, each over a connection of its own; returns how many. None may be refused."""
    count = 0
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}
    path = f"/api/v1/sessions/{name}"

    async def ask(method: str, path: str, json: Any = None) -> httpx.Response:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            response = await client.request(method, path, json=json)
        assert response.is_success, (method, path, response.status_code, response.text)
        return response

    await ask("POST", "/api/v1/sessions", {"session_id": name})
    while not stop.is_set():
        count += 1
        answer = await ask(
            "POST", f"{path}/exec", {"code": "y = globals().get('y', 0) + 1; print(y)"}
        )
        assert answer.json()["stdout"] == f"{count}\n"
        await ask("GET", path)
        opened = await ask("POST", "/api/v1/sessions", {"session_id": f"{name}-{count}"})
        assert opened.status_code == 201
        await ask("DELETE", f"{path}-{count}")
    return count


async def test_a_rolling_upgrade(cluster: Brokers) -> None:
    """All cells succeed, all lines come once and in order, and no request gets anything but its answer."""
    stop = asyncio.Event()
    present = await asyncio.gather(*(asyncio.to_thread(cluster.start) for _ in range(3)))
    async with RoundRobin.running() as balancer:
        balancer.use(*present)
        users = [
            *(use_a_session(balancer.url, f"ws{number}", stop) for number in range(2)),
            *(use_rest(balancer.url, f"rest{number}", stop) for number in range(2)),
        ]
        tasks = [asyncio.create_task(user) for user in users]
        try:
            for old in list(present):
                new = await asyncio.to_thread(cluster.start)
                present = [*(each for each in present if each is not old), new]
                balancer.use(*present)
                assert await asyncio.to_thread(old.stop) == 0
                assert not any(task.done() for task in tasks)
        finally:
            stop.set()
            counts = await asyncio.gather(*tasks)
        assert min(counts) >= 3
    for broker in present:
        broker.kill()
