"""Long cells as tasks, for clients that declare the extension."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_server.mcp.tasks import EXTENSION
from kernelbroker_server.sessions.durable_store import DurableStore
from mcp_types import METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

from tests.api.test_tenants import Names
from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.mcp import McpApi, mcp_api
from tests.support.waiting import until
from tests.support.world import Breakpoint, interruptible

KNOWS: dict[str, Any] = {"extensions": {EXTENSION: {}}, "elicitation": {}}
"""The capabilities of a client that knows tasks, and can ask its person."""
SOON = 0.05
"""Seconds after which calls become tasks here."""


@pytest.fixture
async def api(backend: FakeBackend) -> AsyncIterator[McpApi]:
    async with mcp_api(backend, task_after=SOON) as api:
        yield api


async def started(api: McpApi, code: str, **arguments: Any) -> dict[str, Any]:
    """Run a cell that becomes a task; returns the task."""
    params = {"name": "run_code", "arguments": {"code": code, **arguments}}
    task = (await api.post("tools/call", params, KNOWS))["result"]
    assert task["resultType"] == "task", task
    return dict(task)


async def get(api: McpApi, task: dict[str, Any], token: str = "the-token") -> dict[str, Any]:
    answer = await api.post("tasks/get", {"taskId": task["taskId"]}, KNOWS, token=token)
    assert answer["result"]["resultType"] == "complete"
    return dict(answer["result"])


async def ended(api: McpApi, task: dict[str, Any]) -> dict[str, Any]:
    """Poll the task to its end, as clients do."""
    while (state := await get(api, task))["status"] in ("working", "input_required"):
        pass
    return state


async def test_a_long_cell_is_a_task(api: McpApi, backend: FakeBackend) -> None:
    """The answer comes soon; polling tells how far the cell is, and gives its result."""
    point = Breakpoint()

    async def works(cell: Cell) -> None:
        cell.stdout("step 1\nstep 2\n")
        await point(cell)
        cell.stdout("done\n")

    backend.scripts["work()"] = works
    task = await started(api, "work()")
    assert task["status"] == "working" and task["statusMessage"] == "step 2"
    assert task["ttlMs"] > 0 and task["pollIntervalMs"] > 0
    assert datetime.fromisoformat(task["createdAt"]).tzinfo is not None
    assert (await get(api, task))["status"] == "working"
    point.go_on.set()
    state = await ended(api, task)
    assert state["status"] == "completed"
    result = state["result"]
    assert result["structuredContent"]["output"] == "step 1\nstep 2\ndone"
    session_id = result["structuredContent"]["session_id"]
    assert task["taskId"].startswith(session_id) and not result.get("isError")


async def test_a_short_cell_is_no_task(backend: FakeBackend) -> None:
    """A client that knows tasks gets results at once, if they are there in time."""
    async with mcp_api(backend, task_after=60) as api:
        params = {"name": "run_code", "arguments": {"code": "1"}}
        result = (await api.post("tools/call", params, KNOWS))["result"]
        assert result["resultType"] == "complete"


async def test_a_failed_cell_is_a_completed_task(api: McpApi, backend: FakeBackend) -> None:
    """Its result is an error of the tool; a task fails only by the protocol."""
    point = Breakpoint()
    backend.scripts["wait()"] = point
    task = await started(api, "wait()")
    await api.world.registry.list()[0].close("the test closed it")
    state = await ended(api, task)
    assert state["status"] == "completed" and state["result"]["isError"]
    assert "the test closed it" in state["result"]["content"][0]["text"]


async def test_cancelling_a_task_interrupts_its_cell(api: McpApi, backend: FakeBackend) -> None:
    """The session goes on; cancelling again, or a task that has ended, changes nothing."""
    backend.scripts["wait()"] = interruptible
    task = await started(api, "wait()")
    (session,) = api.world.registry.list()
    for _ in range(2):
        answer = await api.post("tasks/cancel", {"taskId": task["taskId"]}, KNOWS)
        assert set(answer["result"]) == {"resultType", "_meta"}
    assert (await ended(api, task))["status"] == "cancelled"
    await until(lambda: session.state == "idle")
    assert session.closed_reason is None

    params = {"name": "run_code", "arguments": {"code": "1", "session_id": session.id}}
    assert not (await api.post("tools/call", params, KNOWS))["result"].get("isError")


async def test_a_task_asks_for_input(api: McpApi, backend: FakeBackend) -> None:
    """`tasks/update` answers `input()`; an answer to an older question is ignored."""

    async def asks(cell: Cell) -> None:
        for question in ("First? ", "Second? "):
            cell.send("stdin", "input_request", {"prompt": question, "password": False})
            cell.stdout(f"{await cell.answers.get()}\n")

    backend.scripts["ask()"] = asks
    task = await started(api, "ask()")
    assert task["status"] == "input_required"
    asked = []
    for answer in ("one", "two"):
        await until_status(api, task, "input_required")
        state = await get(api, task)
        ((key, request),) = state["inputRequests"].items()
        asked.append(request["params"]["message"])
        accepted = {"action": "accept", "content": {"value": answer}}
        update = {"taskId": task["taskId"], "inputResponses": {key: accepted}}
        for _ in range(2):  # a repeated answer is ignored
            await api.post("tasks/update", update, KNOWS)
        assert key not in (await get(api, task)).get("inputRequests", {})
    state = await ended(api, task)
    assert asked == ["First? ", "Second? "]
    assert state["result"]["structuredContent"]["output"] == "one\ntwo"


async def until_status(api: McpApi, task: dict[str, Any], status: str) -> None:
    while (await get(api, task))["status"] != status:
        pass


async def test_declined_input_ends_the_cell(api: McpApi, backend: FakeBackend) -> None:
    """The cell is interrupted."""

    async def asks(cell: Cell) -> None:
        cell.send("stdin", "input_request", {"prompt": "Name? ", "password": False})
        await cell.until_interrupted()

    backend.scripts["ask()"] = asks
    task = await started(api, "ask()")
    (key,) = (await get(api, task))["inputRequests"]
    update = {"taskId": task["taskId"], "inputResponses": {key: {"action": "decline"}}}
    await api.post("tasks/update", update, KNOWS)
    assert (await ended(api, task))["result"]["isError"]


async def test_tasks_of_others_are_unknown(backend: FakeBackend) -> None:
    """Another tenant's task, and one that never was, give the same error."""
    backend.scripts["wait()"] = interruptible
    options = {"keyring": Names({})}
    async with mcp_api(backend, task_after=SOON, serving_options=options) as api:
        params = {"name": "run_code", "arguments": {"code": "wait()"}}
        task = (await api.post("tools/call", params, KNOWS, token="acme"))["result"]
        for task_id in (task["taskId"], "a.b", "x", "", "é.1", "../../x.y"):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                params = {"taskId": task_id, "inputResponses": {}}
                error = (await api.post(method, params, KNOWS, token="rival"))["error"]
                assert "there is no task" in error["message"]
        assert (await get(api, task, token="acme"))["status"] == "working"


async def test_a_client_without_the_extension_gets_no_tasks(
    api: McpApi, backend: FakeBackend
) -> None:
    """It waits for the result; it cannot use the methods of tasks."""
    point = Breakpoint()
    backend.scripts["wait()"] = point
    async with api.client() as client:
        call = asyncio.create_task(client.call_tool("run_code", {"code": "wait()"}))
        await point.reached()
        await asyncio.wait([call], timeout=4 * SOON)
        assert not call.done()
        point.go_on.set()
        assert not (await call).is_error
    error = (await api.post("tasks/get", {"taskId": "a.b"}))["error"]
    assert error["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert EXTENSION in error["data"]["requiredCapabilities"]["extensions"]
    hello = await api.post("server/discover", {})
    assert EXTENSION in hello["result"]["capabilities"]["extensions"]
    assert (await api.post("tasks/list", {}, KNOWS))["error"]["code"] == METHOD_NOT_FOUND


async def test_a_task_survives_a_restart_of_the_server(api: McpApi, backend: FakeBackend) -> None:
    """A server that knows nothing of the task answers from the event store."""
    point = Breakpoint()
    backend.scripts["wait()"] = point
    task = await started(api, "wait()")
    await api.restart()
    async with api.second_server() as second:
        assert (await get(second, task))["status"] == "working"
        point.go_on.set()
        assert (await ended(second, task))["status"] == "completed"


async def test_a_task_survives_the_broker(backend: FakeBackend, tmp_path: Path) -> None:
    """After the broker was killed, a task that had ended has its result; one that ran has an error."""

    point = Breakpoint()

    async def speaks(cell: Cell) -> None:
        cell.stdout("hello\n")
        await point(cell)

    backend.scripts |= {"speak()": speaks, "wait()": Breakpoint()}
    store = DurableStore(tmp_path / "state")
    await store.start()
    options = {"world_options": {"store": store}, "task_after": SOON}
    async with mcp_api(backend, **options) as api:
        done = await started(api, "speak()")
        point.go_on.set()
        assert (await ended(api, done))["status"] == "completed"
        lost = await started(api, "wait()")
        await until(lambda: len(backend.cells) == 2)
        copy = tmp_path / "copy"
        await asyncio.to_thread(shutil.copytree, tmp_path / "state", copy)  # as a kill leaves it
    await store.stop()

    store = DurableStore(copy)
    await store.start()
    await store.end_lost()
    async with mcp_api(backend, world_options={"store": store}) as api:
        state = await get(api, done)
        assert state["result"]["structuredContent"]["output"] == "hello"
        state = await get(api, lost)
        assert state["status"] == "completed" and state["result"]["isError"]
    await store.stop()
