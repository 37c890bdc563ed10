"""Other clients than the Python SDK's: the TypeScript SDK's, the Inspector, and the conformance suite."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_tenants import Names
from tests.mcp.test_interaction import RISKY, confirming
from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.http import TOKEN
from tests.support.mcp import ERAS, Era, McpApi, mcp_api
from tests.support.requires import require

DIRECTORY = Path(
    os.environ.get("KERNELBROKER_TEST_MCP_CLIENTS", "/var/tmp/kernelbroker-mcp-clients")
)
GET = Path(__file__).parents[1] / "support" / "mcp_clients" / "get"

APPLICABLE = [
    "server-initialize",
    "logging-set-level",
    "ping",
    "tools-list",
    "server-sse-polling",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
]
"""The scenarios that need no tools, prompts or resources of the suite's own example server."""


@pytest.fixture(scope="module")
def clients() -> Path:
    """The directory of the installed clients."""
    require("npm")
    subprocess.run([GET, DIRECTORY], check=True, timeout=240, stdin=subprocess.DEVNULL)
    return DIRECTORY


async def node(clients: Path, *arguments: str, check: bool = True) -> str:
    """Run a program with Node.js, which must succeed with `check`; returns its output."""
    process = await asyncio.create_subprocess_exec(
        *(str(clients / "node_modules" / ".bin" / "node"), *arguments),
        cwd=clients,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert not check or process.returncode == 0, (output + errors).decode()[-4000:]
    return output.decode()


async def prints(cell: Cell) -> None:
    cell.stdout("hello\n")


@pytest.mark.parametrize("era", ERAS)
async def test_the_typescript_sdk(era: Era, clients: Path, backend: FakeBackend) -> None:
    """It lists the tools, runs code, and lets its person confirm risky code, in both eras."""
    backend.scripts[RISKY] = prints
    async with mcp_api(backend, world_options=confirming()) as api:
        output = await node(clients, "call_tool.mjs", api.url(), TOKEN, era, RISKY)
    said: dict[str, Any] = json.loads(output)
    assert said["era"] == ("2025-11-25" if era == "legacy" else era)
    assert "run_code" in said["tools"] and len(said["asked"]) == 1
    assert said["result"]["structuredContent"]["output"] == "hello"


async def test_the_inspectors_command_line(
    clients: Path, api: McpApi, backend: FakeBackend
) -> None:
    """It lists the tools, and runs code."""
    backend.scripts["print('hello')"] = prints
    inspector = ["node_modules/.bin/inspector", "--cli", api.url(), "--transport", "http"]
    inspector += ["--header", f"Authorization: Bearer {TOKEN}"]
    listed = json.loads(await node(clients, *inspector, "--method", "tools/list"))
    assert "run_code" in {tool["name"] for tool in listed["tools"]}
    call = ["--method", "tools/call", "--tool-name", "run_code"]
    result = json.loads(await node(clients, *inspector, *call, "--tool-arg", "code=print('hello')"))
    assert result["structuredContent"]["output"] == "hello"


@pytest.mark.slow
async def test_the_conformance_suite(clients: Path, backend: FakeBackend, tmp_path: Path) -> None:
    """The scenarios that apply to this server pass. The suite sends no token."""
    options = {"keyring": Names({})}
    async with mcp_api(backend, hosts=["127.0.0.1", "localhost"], serving_options=options) as api:
        suite = ["node_modules/.bin/conformance", "server", "--url", api.url(), "--suite", "all"]
        output = await node(clients, *suite, "-o", str(tmp_path), check=False)
    passed = re.findall(r"^✓ ([\w-]+):", output, re.MULTILINE)
    assert set(APPLICABLE) <= set(passed), output[-4000:]
