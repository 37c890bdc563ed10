"""A broker that is killed and started again: what its clients have seen, and more, can still be read.

The sandboxes end with the broker. `test_adoption.py` has those that go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import DEADLINE_S, BrokerProcess, call, opened, whole_system
from tests.support.waiting import until

pytestmark = whole_system

NDJSON = "application/x-ndjson"
WAIT = "print('it runs', flush=True)\nimport time\nwhile True: time.sleep(0.05)"


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory), TOKEN="the token of this test", SANDBOX__ORPHAN_GRACE=0
        )
        try:
            yield broker.start()
        finally:
            broker.kill()


async def test_results_outlive_a_killed_broker(broker: BrokerProcess) -> None:
    """After kill -9, ended executions are read as they were seen; the others have a result that says so."""
    seen: list[events.Event] = []
    async with kernelbroker.connect(broker.url, broker.token, timeout=5) as client:
        session = client.session("mine")
        await session.open()
        async for event in session.stream("for i in range(3): print(i)\n6 * 7"):
            seen.append(event)
        running: list[events.Event] = []
        stream = session.stream(WAIT, timeout=60)
        while not running or not isinstance(running[-1], events.Stdout):
            running.append(await anext(stream))
        waiting = (await call(broker, "GET", "/api/v1/sessions/mine/executions"))[1]["executions"]
        assert [each["state"] for each in waiting] == ["done", "running"]
        async with opened(
            broker, "POST", "/api/v1/sessions/mine/exec", {"code": "1", "execution_id": "late"}
        ):
            broker.kill()
        await stream.aclose()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as client:
        done = seen[0].execution_id
        assert [event async for event in client.replay("mine", done)] == seen
        assert [event async for event in client.replay("mine", done, 2)] == seen[2:]
        result = await client.result("mine", done)
        assert (result.success, result.stdout) == (True, "0\n1\n2\n")
        lost = [event async for event in client.replay("mine", running[0].execution_id)]
        assert lost[: len(running)] == running
        end = lost[-1]
        assert isinstance(end, events.Result)
        assert end.error_detail is not None
        assert end.error_detail.cause == "sandbox_lost"
        assert "the broker ended" in end.error_detail.value
        late = await client.result("mine", "late")
        assert late.error_detail is not None
        assert late.error_detail.cause == "rejected"
        listed = await client.executions("mine")
        assert [each.execution_id for each in listed] == [done, running[0].execution_id, "late"]
        assert [each.state for each in listed] == ["done"] * 3
        with pytest.raises(kernelbroker.SessionGone, match="the broker ended"):
            await client.attach("mine")
        with pytest.raises(kernelbroker.NotFound):
            await client.executions("unknown")
        async with client.session("mine") as again:
            assert (await again.run("print('again')")).stdout == "again\n"
        assert (await client.result("mine", done)).stdout == "0\n1\n2\n"
    status, answer = await call(broker, "GET", f"/api/v1/sessions/mine/executions/{done}")
    assert (status, answer["state"], answer["result"]["success"]) == (200, "done", True)
    broker.stop_in_order()


async def test_a_restart_locks_nobody_out() -> None:
    """A client that asks in a loop is never refused while brokers with a token of their own come and go."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(Path(directory), PORT=port)
        broker.start()
        tokens, answers = [broker.token], 0
        async with kernelbroker.connect(broker.url, broker.token) as client:

            async def ask() -> None:
                nonlocal answers
                while True:
                    try:
                        await client.sessions()
                        answers += 1
                    except (kernelbroker.ConnectionFailed, kernelbroker.Unavailable):
                        await asyncio.sleep(0.01)

            asking = asyncio.create_task(ask())
            try:
                for end in (broker.stop, broker.kill, lambda: broker.stop(signal.SIGINT)):
                    before = answers
                    await until(lambda before=before: answers > before or asking.done())
                    await asyncio.to_thread(end)
                    await asyncio.to_thread(broker.start)
                    tokens.append(broker.token)
                before = answers
                await until(lambda: answers > before or asking.done())
                assert not asking.done()
            finally:
                asking.cancel()
        assert len(set(tokens)) == 1
        broker.stop()
        broker.start("--new-token")
        assert broker.token not in tokens
        broker.stop_in_order()


async def execute(broker: BrokerProcess, key: str, **body: Any) -> tuple[str | None, bytes]:
    async with opened(
        broker, "POST", "/api/v1/exec", body, NDJSON, **{"Idempotency-Key": key}
    ) as response:
        assert response.status == 200
        return response.headers["Idempotent-Replayed"], await response.rest()


async def test_a_key_is_used_once_across_restarts(broker: BrokerProcess) -> None:
    """A request whose key was used before the broker was killed gets the stored answer, and never runs."""
    count = "with open('runs', 'a') as f: f.write('x')\nprint(open('runs').read())"
    body = {"code": count, "session_id": "counting", "workspace": "counts"}
    replayed, first = await execute(broker, "ended", **body)
    assert replayed is None
    assert b'"x\\n"' in first
    slow = {"code": count + "\n" + WAIT, "workspace": "others", "timeout": 60}
    headers = {"Idempotency-Key": "running"}
    async with opened(broker, "POST", "/api/v1/exec", slow, NDJSON, **headers) as response:
        await response.until_seen(b"it runs")
        before = bytes(response.received)
        broker.kill()
    for _ in range(2):
        broker.start()
        assert await execute(broker, "ended", **body) == ("true", first)
        replayed, again = await execute(broker, "running", **slow)
        assert replayed == "true"
        assert again.startswith(before)
        assert b"sandbox_lost" in again
        status, _ = await call(
            broker, "POST", "/api/v1/exec", {"code": "2"}, **{"Idempotency-Key": "ended"}
        )
        assert status == 409
        _, answer = await execute(
            broker, "new", code="print(open('runs').read())", workspace="counts"
        )
        assert b'"x\\n"' in answer
        broker.stop_in_order()
    broker.start()


async def test_one_broker_has_a_state_directory(broker: BrokerProcess) -> None:
    """A second broker on the same state directory ends with a message that names the first one."""
    environ = broker.client_environ | {
        "KERNELBROKER_PORT": "0",
        "KERNELBROKER_LOCAL__KERNEL_PYTHON": sys.executable,
        "KERNELBROKER_LOCAL__DATA_DIR": str(broker.data_dir),
        "KERNELBROKER_LOCAL__RUN_DIR": str(broker.run_dir),
    }
    second = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "kernelbroker_server"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert second.returncode == 2
    assert f"the broker with pid {broker.pid}" in second.stderr
    assert "KERNELBROKER_STATE_DIR" in second.stderr
    assert len(broker.broker_ids()) == 1
    os.kill(broker.pid, signal.SIGKILL)
    broker.wait()
    broker.start()
    broker.stop_in_order()


async def test_a_broker_without_a_state_directory_writes_nothing() -> None:
    """With an empty state_dir nothing of a cell is written to the disk by the broker."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(Path(directory), STATE_DIR="")
        with broker.running():
            async with kernelbroker.connect(broker.url, broker.token) as client:
                async with client.session("mine") as session:
                    await session.run("print('a distinctive output')")
                executions = await client.executions("mine")
                result = await client.result("mine", executions[0].execution_id)
                assert result.stdout == "a distinctive output\n"
            assert not (broker.data_dir / ".state").exists()
