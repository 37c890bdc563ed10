"""The events of sessions for a front end, with real sandboxes and a broker that is killed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from kernelbroker import BadRequest, CodeOperationError, sync

from tests.e2e.support import BrokerProcess, call, free_port, until, whole_system
from tests.e2e.test_adoption import end_all

pytestmark = whole_system

TESTS = "def test_good(): pass\n\n\ndef test_bad(): assert 1 == 2\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One that is killed and started again; sessions fall asleep on demand only."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory),
            TOKEN="of this test",
            PORT=free_port(),
            POOL__MIN_SIZE=1,
            POOL__MAX_SIZE=3,
        )
        try:
            with broker.running():
                yield broker
        finally:
            end_all(broker)


async def until_type(
    events: AsyncGenerator[dict[str, Any], None], kind: str
) -> list[dict[str, Any]]:
    found = []
    async with asyncio.timeout(60):
        async for event in events:
            found.append(event)
            if event["type"] == kind:
                break
    return found


async def test_operations_emit_their_events(client: kernelbroker.Broker, tmp_path: Path) -> None:
    """Operations begin with `code_operation` and end with `result`; tests tell their outcomes meanwhile."""
    (tmp_path / "test_some.py").write_text(TESTS)
    async with client.session() as session:
        await session.code.upload(tmp_path)
        async with aclosing(session.events()) as events:
            begun = await until_type(events, "result")
            assert [each["type"] for each in begun] == [
                "sandbox_created",
                "sandbox_ready",
                "code_operation",
                "result",
            ]
            assert (begun[2]["operation"], begun[3]["success"]) == ("unpack", True)
            await session.code.edit("test_some.py", old="1 == 2", new="1 == 1")
            edit, edited = await until_type(events, "result")
            assert (edit["operation"], edit["path"]) == ("edit", "test_some.py")
            assert edited["operation_id"] == edit["operation_id"]
            assert "+def test_bad(): assert 1 == 1" in edited["result"]["diff"]
            with pytest.raises(CodeOperationError):
                await session.code.read("missing.py")
            _, missing = await until_type(events, "result")
            assert (missing["success"], missing["code"]) == (False, "not_found")
            tested = await session.code.run_tests("test_some.py")
            test, *outputs, ended = await until_type(events, "result")
            assert (test["operation"], test["path"]) == ("run_tests", "test_some.py")
            assert {each["type"] for each in outputs} == {"test_output"}
            assert outputs[-1]["passed"] == 2
            assert (ended["execution_id"], ended["result"]["passed"]) == (tested.execution_id, 2)
            await session.code.run("exit 3")
            command, failed = await until_type(events, "result")
            assert (command["command"], failed["success"]) == ("exit 3", False)
            posted = await session.post_event("plan", {"steps": ["one"]})
            (plan,) = await until_type(events, "plan")
            assert plan == posted
            assert (plan["source"], plan["seq"]) == ("sdk", failed["seq"] + 1)
            with pytest.raises(BadRequest, match="steps"):
                await session.post_event({"type": "plan"})
        last = plan["seq"]
    rest = [each async for each in client.session_events(session.session_id, last - 1)]
    assert rest == [plan]


async def test_events_outlive_a_killed_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    """After kill -9 a reader goes on where it was, and operations that ran tell their result."""
    (tmp_path / "test_slow.py").write_text(
        "import os, time\n\n\ndef test_slow():\n    while not os.path.exists('go'): time.sleep(0.1)\n"
    )
    async with kernelbroker.connect(broker.url, "of this test") as client:
        session = await client.session("mine", keep=True).open()
        await session.code.upload(tmp_path)
        await session.post_event("plan", {"steps": ["wait"]})
        running = asyncio.create_task(session.code.run_tests())
        async with aclosing(session.events()) as events:
            before = await until_type(events, "plan")
            before += await until_type(events, "code_operation")
            assert before[-1]["operation"] == "run_tests"
            execution_id = before[-1]["execution_id"]

            async def runs() -> bool:
                return [each.state for each in await session.executions()] == ["running"]

            await until(runs)
            broker.kill()
            with pytest.raises(kernelbroker.SandboxConnectionError):
                await running
            broker.start()
            await session.files.write("project/go", b"")
            after = await until_type(events, "result")
        assert (after[-1]["execution_id"], after[-1]["success"]) == (execution_id, True)
        seqs = [each["seq"] for each in [*before, *after]]
        assert seqs == [*range(1, len(seqs) + 1)]
        again = await until_type(session.events(), "result")
        assert again[: len(before)] == before[: len(again)]
        await client.close_session("mine")


async def test_events_outlive_a_sleep(broker: BrokerProcess) -> None:
    """A session that slept while the broker was killed goes on with its events."""
    async with kernelbroker.connect(broker.url, "of this test") as client:
        options = {"session_id": "sleepy", "on_expiry": "sleep", "idle_timeout": 0.5}
        assert (await call(broker, "POST", "/api/v1/sessions", options))[0] == 201
        session = await client.attach("sleepy")
        await session.post_event("plan", {"steps": ["sleep"]})
        await session.close()

        async def sleeps() -> bool:
            return [each.state for each in await client.sessions()] == ["asleep"]

        await until(sleeps)
        broker.kill()
        broker.start()
        session = await client.attach("sleepy")
        assert (await session.run("print(1)")).stdout == "1\n"
        async with aclosing(session.events()) as events:
            found = await until_type(events, "plan")
            found += await until_type(events, "sandbox_ready")
        assert [each["seq"] for each in found] == [*range(1, len(found) + 1)]
        await client.close_session("sleepy")


def test_the_synchronous_client(broker: BrokerProcess) -> None:
    """Events can be posted and read without `await`."""
    with sync.connect(broker.url, "of this test") as client, client.session() as session:
        session.post_event("observation", {"content": "seen"})
        for event in session.events():
            if event["type"] == "observation":
                break
        assert event["content"] == "seen"


async def test_a_stop_ends_streams_in_order() -> None:
    """A broker that stops with readers leaves the session to the next one, where they go on."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        settings: dict[str, object] = {"TOKEN": "t", "PORT": free_port(), "SHUTDOWN": "adopt"}
        broker = BrokerProcess(Path(directory), **settings, GRPC__PORT=free_port())
        try:
            broker.start()
            async with kernelbroker.connect(broker.url, "t") as client:
                session = await client.session("mine", keep=True).open()
                async with aclosing(session.events()) as events:
                    await until_type(events, "sandbox_ready")
                    assert await asyncio.to_thread(broker.stop) == 0
                    assert broker.complaints() == []
                    broker.start()
                    await session.post_event("plan", {"steps": []})
                    found = await until_type(events, "plan")
                assert found[-1]["source"] == "sdk"
                await client.close_session("mine")
        finally:
            broker.kill()
            end_all(broker)
