"""Sessions go on at another broker when their owner has died, has left, or is paused and wakes up again."""

from __future__ import annotations

import asyncio
import os
import signal

import kernelbroker

from tests.cluster.support import TOKEN, Brokers
from tests.e2e.support import BrokerProcess, call, until, whole_system

pytestmark = whole_system

JSON = "application/json"
SLOW = """
import time
for i in range(200):
    print(i, flush=True)
    time.sleep(0.05)
"""
SUPERSEDED = 3


async def run(broker: BrokerProcess, session: str, code: str) -> str:
    path = f"/api/v1/sessions/{session}/exec"
    status, answer = await call(broker, "POST", path, {"code": code}, accept=JSON)
    assert status == 200, answer
    return str(answer["stdout"]).strip()


async def test_a_killed_owner(cluster: Brokers) -> None:
    """After `kill -9` of the owner another broker goes on: variables, files, and the cell that runs."""
    one, other = cluster.start(), cluster.start()
    async with kernelbroker.connect(other.url, TOKEN) as client:
        await call(one, "POST", "/api/v1/sessions", {"session_id": "killed"})
        async with client.session("killed", keep=True) as session:
            await session.run("x = 41\nopen('f', 'w').write('kept')")
            running = asyncio.create_task(session.run(SLOW))
            path = "/api/v1/sessions/killed/executions"
            await until(lambda: _some_output(other, path))
            one.kill()
            result = await running
            assert result.success, result
            assert result.stdout.split() == [str(i) for i in range(200)]
            assert (await session.run("print(x + 1, open('f').read())")).stdout == "42 kept\n"
    other.kill()


async def _some_output(broker: BrokerProcess, path: str) -> bool:
    status, found = await call(broker, "GET", path)
    return status == 200 and any(each["state"] == "running" for each in found["executions"])


async def test_a_paused_owner_that_wakes_up(cluster: Brokers) -> None:
    """A paused owner loses its sessions after its lease. When it wakes up it harms nothing, and ends."""
    one, other = cluster.start(), cluster.start()
    await call(one, "POST", "/api/v1/sessions", {"session_id": "paused"})
    await run(one, "paused", "x = 1\nimport os")
    pid = await run(one, "paused", "print(os.getpid())")
    os.kill(one.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            assert (await call(other, "GET", "/api/v1/sessions/paused"))[0] == 200
            assert await run(other, "paused", "x += 1\nprint(x)") == "2"
        # What a client sends to the paused broker meanwhile is refused by the gateway and the store.
        late = asyncio.create_task(run(one, "paused", "x += 100\nx"))
        await asyncio.sleep(0)
    finally:
        os.kill(one.pid, signal.SIGCONT)
    assert await asyncio.to_thread(one.wait) == SUPERSEDED
    assert isinstance((await asyncio.gather(late, return_exceptions=True))[0], Exception)
    for expected in ("3", "4"):
        assert await run(other, "paused", "x += 1\nprint(x)") == expected
    assert await run(other, "paused", "print(os.getpid())") == pid
    assert "taken over the sessions of this one" in one.log.read_text()
    other.kill()


async def test_an_owner_that_leaves(cluster: Brokers) -> None:
    """After SIGTERM the sessions go on at another broker at once, also a cell that runs."""
    one, other = cluster.start(), cluster.start()
    async with kernelbroker.connect(other.url, TOKEN) as client:
        await call(one, "POST", "/api/v1/sessions", {"session_id": "left"})
        async with client.session("left", keep=True) as session:
            await session.run("x = 1")
            running = asyncio.create_task(session.run(SLOW))
            await until(lambda: _some_output(other, "/api/v1/sessions/left/executions"))
            assert await asyncio.to_thread(one.stop) == 0
            result = await running
            assert result.success, result
            assert result.stdout.split() == [str(i) for i in range(200)]
            assert (await session.run("print(x)")).stdout == "1\n"
    other.kill()
