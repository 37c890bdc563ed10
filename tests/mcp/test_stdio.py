"""`kernelbroker mcp`, started by the SDK's client, against scripted sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kernelbroker import mcp_exchange
from kernelbroker_server.mcp.tool_sets import TOOL_SETS
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp_types import CallToolResult

from tests.mcp.test_interaction import RISKY, Person, confirming
from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.http import TOKEN
from tests.support.mcp import ERAS, Era, McpApi, mcp_api, text_of
from tests.support.waiting import until
from tests.support.world import interruptible


@asynccontextmanager
async def stdio(api: McpApi, era: Era, *arguments: str, **options: Any) -> AsyncIterator[Client]:
    """A client that has started `kernelbroker mcp`."""
    command = ["-m", "kernelbroker.cli", "--url", api.url(""), "mcp", *arguments]
    environ = {**os.environ, "KERNELBROKER_TOKEN": TOKEN}
    server = StdioServerParameters(command=sys.executable, args=command, env=environ)
    async with Client(server, mode=era, **options) as client:
        yield client


async def run(client: Client, code: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool("run_code", {"code": code, **arguments})
    assert isinstance(result, CallToolResult)
    return result


@pytest.mark.parametrize("era", ERAS)
async def test_the_process_goes_on_with_its_last_session(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """A call without a session runs in the last one; if that is closed, in a new one."""
    async with stdio(api, era) as client:
        first = (await run(client, "1")).structured_content["session_id"]
        assert (await run(client, "2")).structured_content["session_id"] == first
        listed = await client.call_tool("list_files", {})
        assert listed.structured_content["session_id"] == first
        made = await client.call_tool("create_session", {"name": "other"})
        assert made.structured_content["session_id"] == "other"
        assert (await run(client, "3")).structured_content["session_id"] == "other"
        await api.world.registry.get("other").close("the test closed it")
        third = await run(client, "4")
        assert not third.is_error
        assert third.structured_content["session_id"] not in ("other", first)
        unknown = await run(client, "5", session_id="unknown")
        assert unknown.is_error and "unknown" in text_of(unknown)


@pytest.mark.parametrize("era", ERAS)
async def test_progress_questions_and_cancellation_pass_through(
    era: Era, backend: FakeBackend
) -> None:
    """The process adds nothing to them, and loses nothing of them."""

    async def speaks(cell: Cell) -> None:
        cell.stdout("half way\n")
        await interruptible(cell)

    backend.scripts["speak()"] = speaks
    progress: list[str | None] = []

    async def on_progress(_at: float, _total: float | None, message: str | None) -> None:
        progress.append(message)

    person = Person("accept")
    async with (
        mcp_api(backend, world_options=confirming()) as api,
        stdio(api, era, elicitation_callback=person) as client,
    ):
        assert not (await run(client, RISKY)).is_error
        assert len(person.asked) == 1
        call = asyncio.create_task(
            client.call_tool("run_code", {"code": "speak()"}, progress_callback=on_progress)
        )
        await until(lambda: progress)
        assert str(progress[0]).startswith("half way\n")
        call.cancel()
        await asyncio.wait([call])
        (session,) = api.world.registry.list()
        await until(lambda: session.state == "idle")
        # Again in a session that the client did not name
        assert not (await run(client, RISKY)).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_files_below_the_roots_are_copied(
    era: Era, api: McpApi, backend: FakeBackend, tmp_path: Path
) -> None:
    """Files outside of the roots, also behind links, are refused."""
    root, secret = tmp_path / "root", tmp_path / "secret.txt"
    root.mkdir()
    (root / "sales.csv").write_text("a,b\n")
    secret.write_text("secret")
    (root / "link.txt").symlink_to(secret)
    (root / "up").symlink_to(tmp_path)
    async with stdio(api, era, "--root", str(root)) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {"upload_file", "download_file", "run_code"} <= tools
        up = await client.call_tool("upload_file", {"local_path": "sales.csv", "path": "sales.csv"})
        assert not up.is_error, text_of(up)
        session_id = up.structured_content["session_id"]
        gateway = next(iter(backend.live.values())).gateway
        assert gateway.files == {"sales.csv": b"a,b\n"}
        copied = {"path": "sales.csv", "local_path": "new/copy.csv", "session_id": session_id}
        down = await client.call_tool("download_file", copied)
        assert down.structured_content["size"] == 4
        assert (root / "new" / "copy.csv").read_text() == "a,b\n"
        for path in ("../secret.txt", str(secret), "link.txt", "up/secret.txt", ".", "/etc/passwd"):
            for name, more in [("upload_file", {}), ("download_file", {"path": "sales.csv"})]:
                refused = await client.call_tool(name, {"local_path": path, **more})
                assert refused.is_error and "--root" in text_of(refused), path
        missing = await client.call_tool("upload_file", {"local_path": "none"})
        assert missing.is_error and "not a file" in text_of(missing)
        unknown = {**copied, "session_id": "unknown"}
        assert (await client.call_tool("download_file", unknown)).is_error
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("era", ERAS)
async def test_without_roots_there_are_no_local_files(era: Era, api: McpApi) -> None:
    """The tools are not listed, and cannot be called."""
    async with stdio(api, era) as client:
        assert "upload_file" not in {tool.name for tool in (await client.list_tools()).tools}
        with pytest.raises(Exception, match="there is no tool 'upload_file'"):
            await client.call_tool("upload_file", {"local_path": "/etc/passwd"})


@pytest.mark.parametrize("chosen", ["code", "analysis"])
async def test_each_set_of_tools_can_be_chosen(api: McpApi, chosen: str) -> None:
    """The tools are those of the set, with those that copy files if the set has files."""
    async with stdio(api, "2026-07-28", "--tools", chosen) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
    own = {tool.name for tool in TOOL_SETS[chosen]}
    assert listed and listed - own <= {"upload_file", "download_file"}


@pytest.mark.parametrize("era", ERAS)
async def test_a_set_that_the_broker_has_not_is_an_error(api: McpApi, era: Era) -> None:
    """What the broker refuses by HTTP is an error of the protocol, so that no client waits for ever."""
    with pytest.raises(Exception) as raised:
        async with asyncio.timeout(20), stdio(api, era, "--tools", "browser") as client:
            await client.list_tools()
    assert "no path /mcp/browser" in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'{"error": {"code": "unauthorized", "message": "who?"}, "id": 1}', "who?"),
        (b'{"error": "upstream"}', "status 502"),
        (b'"busy"', "status 502"),
        (b"[]", "status 502"),
        (b'{"error": {"message": 7}}', "status 502"),
    ],
)
def test_an_answer_of_http_becomes_an_error(answer: bytes, told: str) -> None:
    """Whatever a broker or a proxy answers, the client gets JSON-RPC."""
    message = mcp_exchange._message_of(answer, 502)
    assert message["jsonrpc"] == "2.0" and message["error"]["code"] == -32603
    assert told in message["error"]["message"]


async def test_a_set_of_tools_can_be_chosen(api: McpApi) -> None:
    """`--tools analysis` cannot run code."""
    async with stdio(api, "2026-07-28", "--tools", "analysis") as client:
        assert "run_code" not in {tool.name for tool in (await client.list_tools()).tools}


async def test_an_older_client_survives_a_restart_of_the_server(
    api: McpApi, backend: FakeBackend
) -> None:
    """The process begins a new connection by itself, and goes on with its session."""
    async with stdio(api, "legacy") as client:
        first = (await run(client, "1")).structured_content["session_id"]
        await api.restart()
        again = await run(client, "2")
        assert again.structured_content["session_id"] == first


async def test_garbage_on_standard_input(api: McpApi) -> None:
    """Each line that is no message is answered with an error; the process goes on."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kernelbroker.cli", "--url", api.url(""), "mcp"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "KERNELBROKER_TOKEN": TOKEN},
    )
    lines = [
        b"{",
        b"[]",
        b"\xff",
        b'"x"',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": 5}',
        b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": 5}}',
        b'{"jsonrpc": "2.0", "id": 3, "method": {}}',
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}}',
        b'{"jsonrpc": "2.0", "id": 4}',
    ]
    output, _ = await process.communicate(b"\n".join([*lines, b""]))
    answers = [json.loads(line) for line in output.splitlines()]
    assert all("error" in each for each in answers)
    assert process.returncode == 0


async def test_a_broker_that_cannot_be_reached_is_an_error() -> None:
    """The message says which address was tried."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kernelbroker.cli", "--url", "http://127.0.0.1:9", "mcp"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2 and b"no broker at http://127.0.0.1:9" in errors
