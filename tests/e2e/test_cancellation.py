"""Clients that change their minds, or die, at any moment: nothing of them stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Literal

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import DEADLINE_S, BrokerProcess, call, opened, until, whole_system

pytestmark = whole_system

CELL = "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.005)\n"
ITERATIONS = [0, 1, 2, 3, 4, 5, 7, 9, 12, 16, 22, 30, 50, 80, 130, 200, 350, 600, 1000, 1700]


@pytest.fixture
async def nothing_leaks(broker: BrokerProcess) -> AsyncIterator[None]:
    """When the test is over this process has no more tasks and sockets than before."""

    def sockets() -> int:
        count = 0
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                count += path.readlink().name.startswith("socket:")
        return count

    def tasks() -> set[asyncio.Task[object]]:
        return asyncio.all_tasks() - {asyncio.current_task()}  # that of this fixture

    tasks_before, sockets_before = tasks(), sockets()
    yield
    await until(lambda: tasks() <= tasks_before, tasks)
    await until(lambda: sockets() <= sockets_before, sockets)


async def cancelled_after(iterations: int, work: Callable[[], Awaitable[object]]) -> None:
    """Start it, let the loop go round so many times, cancel it, and wait for its end."""
    task = asyncio.ensure_future(work())
    for _ in range(iterations):
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(DEADLINE_S):
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("on_disconnect", ["continue", "interrupt"])
async def test_run(
    broker: BrokerProcess,
    nothing_leaks: None,
    shared_id: str,
    on_disconnect: Literal["continue", "interrupt"],
) -> None:
    """`run` may be cancelled at any moment; the session then works as before."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(shared_id, keep=True) as session,
    ):
        for iterations in ITERATIONS:
            await cancelled_after(
                iterations, lambda: session.run(CELL, on_disconnect=on_disconnect)
            )
            assert session._channel is not None
            assert not session._channel._inboxes
        result = await session.run("print('works')")
        assert (result.stdout, result.error) == ("works\n", None)


async def test_stream(broker: BrokerProcess, nothing_leaks: None, shared_id: str) -> None:
    """A stream may be left, or its reader cancelled, at any event."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(shared_id, keep=True) as session,
    ):

        async def read() -> None:
            async with aclosing(session.stream(CELL)) as stream:
                async for _ in stream:
                    await asyncio.sleep(0)

        for iterations in ITERATIONS:
            await cancelled_after(iterations, read)
        for count in range(6):
            async with aclosing(session.stream(CELL, on_disconnect="interrupt")) as stream:
                seen = 0
                async for _ in stream:
                    seen += 1
                    if seen > count:
                        break
        result = await session.run("print('works')")
        assert (result.stdout, result.error) == ("works\n", None)


async def test_open(broker: BrokerProcess, nothing_leaks: None) -> None:
    """Opening a session may be cancelled at any moment; no session stays on the broker."""

    async def sessions() -> set[str]:
        _, listed = await call(broker, "GET", "/api/v1/sessions")
        return {session["session_id"] for session in listed["sessions"]}

    before = await sessions()
    async with kernelbroker.connect(broker.url, broker.token) as client:

        async def use() -> None:
            async with client.session() as session:
                await session.run("1")

        for iterations in (0, 1, 3, 6, 12, 25, 50, 100, 200):
            await cancelled_after(iterations, use)
        for iterations in (2, 40):
            await cancelled_after(iterations, lambda: client.run("1"))

    async def none_is_left() -> bool:
        return await sessions() <= before

    await until(none_is_left)


CLIENT = """
import asyncio, kernelbroker

async def main():
    async with kernelbroker.connect() as broker, broker.session("killed", idle_timeout=3) as session:
        code = "import time\\nprint('runs', flush=True)\\nfor _ in range(6000): time.sleep(0.01)"
        async for event in session.stream(code, timeout=60, on_disconnect="interrupt"):
            if isinstance(event, kernelbroker.events.Stdout):
                print(event.content, flush=True)

asyncio.run(main())
"""


async def test_killed_client(broker: BrokerProcess, client: kernelbroker.Broker) -> None:
    """When a client is killed its cell is interrupted if it asked for that, and the rest goes on."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, env=broker.client_environ, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        assert await process.stdout.readline() == b"runs\n"
        _, listed = await call(broker, "GET", "/api/v1/sessions/killed/executions")
        execution_id = listed["executions"][0]["execution_id"]
        path = f"/api/v1/sessions/killed/executions/{execution_id}/events"
        async with opened(broker, "GET", path, accept="application/x-ndjson") as response:
            await response.until_seen(b"runs")
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            result = json.loads((await response.rest()).splitlines()[-1])
        assert result["error_detail"]["cause"] == "interrupted"

        async def is_gone() -> bool:
            return (await call(broker, "GET", "/api/v1/sessions/killed"))[0] == 410

        await until(is_gone)
    assert (await client.run("print(1)")).stdout == "1\n"


def test_sync_reader_that_leaves(broker: BrokerProcess, shared_id: str) -> None:
    """Leaving the loop over a synchronous stream leaves the session in order."""
    with (
        kernelbroker.sync.connect(broker.url, broker.token) as client,
        client.session(shared_id, keep=True) as session,
    ):
        for event in session.stream(CELL, on_disconnect="interrupt"):
            if isinstance(event, events.Stdout):
                break
        assert session.run("print('works')").stdout == "works\n"
