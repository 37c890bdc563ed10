"""Clients that cancel or die at any moment leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Literal

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import DEADLINE_S, BrokerProcess, call, opened, until, whole_system
from tests.support.waiting import cancelled_anywhere

pytestmark = whole_system

CELL = "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.005)\n"
GROWTH = 1.4
"""A cell takes some thousand turns of the loop: these are tried by ever larger steps, to its end."""


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


@pytest.mark.parametrize("on_disconnect", ["continue", "interrupt"])
async def test_run_can_be_cancelled(
    broker: BrokerProcess,
    nothing_leaks: None,
    shared_id: str,
    on_disconnect: Literal["continue", "interrupt"],
) -> None:
    """`run` can be cancelled at any moment; the session then works as before."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(shared_id, keep=True) as session,
    ):
        async for task in cancelled_anywhere(
            lambda: session.run(CELL, on_disconnect=on_disconnect), growth=GROWTH
        ):
            assert task.cancelled() or task.result().success
            assert session._connection is not None
            assert not session._connection._queues
        result = await session.run("print('works')")
        assert (result.stdout, result.error) == ("works\n", None)


async def test_stream_can_be_left(
    broker: BrokerProcess, nothing_leaks: None, shared_id: str
) -> None:
    """A stream can be left, or its reader cancelled, at any event."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(shared_id, keep=True) as session,
    ):

        async def read() -> None:
            async with aclosing(session.stream(CELL)) as stream:
                async for _ in stream:
                    await asyncio.sleep(0)

        async for task in cancelled_anywhere(read, growth=GROWTH):
            assert task.cancelled() or task.exception() is None
        for count in range(6):
            async with aclosing(session.stream(CELL, on_disconnect="interrupt")) as stream:
                seen = 0
                async for _ in stream:
                    seen += 1
                    if seen > count:
                        break
        result = await session.run("print('works')")
        assert (result.stdout, result.error) == ("works\n", None)


async def test_open_can_be_cancelled(broker: BrokerProcess, nothing_leaks: None) -> None:
    """Opening a session can be cancelled at any moment; no session stays on the broker."""

    async def sessions() -> set[str]:
        _, listed = await call(broker, "GET", "/api/v1/sessions")
        return {session["session_id"] for session in listed["sessions"]}

    before = await sessions()
    async with kernelbroker.connect(broker.url, broker.token) as client:

        async def use() -> None:
            async with client.session() as session:
                await session.run("1")

        async for task in cancelled_anywhere(use, growth=3):
            assert task.cancelled() or task.exception() is None
        async for task in cancelled_anywhere(lambda: client.run("1"), growth=12):
            assert task.cancelled() or task.result().success

    async def none_is_left() -> bool:
        return await sessions() <= before

    await until(none_is_left)


CLIENT = """
import asyncio, kernelbroker

async def main():
    async with kernelbroker.connect() as broker, broker.session("killed", idle_timeout=4) as session:
        code = "import time\\nprint('runs', flush=True)\\nfor _ in range(6000): time.sleep(0.01)"
        async for event in session.stream(code, timeout=60, on_disconnect="interrupt"):
            if isinstance(event, kernelbroker.events.Stdout):
                print(event.content, flush=True)

asyncio.run(main())
"""


async def test_a_killed_client_leaves_running_cells(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """After a client is killed its cell is interrupted if requested, and other cells continue."""
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
