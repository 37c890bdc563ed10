"""MCP with real kernels: tables, tracebacks, plots, files, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import kernelbroker
import pytest
from kernelbroker_server.mcp import tasks
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ImageContent

from tests.e2e.support import ROOT, BrokerProcess, running_broker, until, whole_system
from tests.support.mcp import (
    ERAS,
    Era,
    modern_answer,
    modern_headers,
    modern_message,
    text_of,
)

pytestmark = whole_system


@asynccontextmanager
async def connected(
    broker: BrokerProcess, era: Era = "2026-07-28", path: str = "/mcp", **options: Any
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {broker.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(f"{broker.url}{path}", http_client=http), mode=era, **options
        ) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    return result


@pytest.mark.parametrize("era", ERAS)
async def test_the_tools_on_a_real_kernel(era: Era, broker: BrokerProcess) -> None:
    """A session is analysed by tools: values, tables and their pages, plots, files, errors."""
    async with connected(broker, era) as client:
        first = await call(client, "run_code", code="1 + 1")
        assert first.structured_content["value"] == 2
        assert text_of(first).startswith("2\n\n[session_id")
        here = {"session_id": first.structured_content["session_id"]}

        code = (
            "import pandas as pd\ndf = pd.DataFrame({'n': range(1000), 't': ['a', 'b'] * 500})\ndf"
        )
        shown = await call(client, "run_code", code=code, **here)
        table = shown.structured_content["table"]
        assert (table["shape"], len(table["records"])) == ([1000, 2], 50)
        assert text_of(shown).count("| 0 ") <= 2 and "1,000 rows × 2 columns" in text_of(shown)
        later = await call(client, "run_code", code="print('no value')", **here)
        assert "table" not in later.structured_content

        where = {"name": "df", "offset": 998, "limit": 5, "sort_by": "n", **here}
        page = (await call(client, "get_table", **where)).structured_content["table"]
        assert [each["n"] for each in page["records"]] == [998, 999]
        page = (await call(client, "get_table", **where, descending=True)).structured_content
        assert [each["n"] for each in page["table"]["records"]] == [1, 0]

        plot = (
            "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig('plot.png'); plt.show()"
        )
        drawn = await call(client, "run_code", code=plot, **here)
        assert [each.mime_type for each in drawn.content if isinstance(each, ImageContent)] == [
            "image/png"
        ]
        assert drawn.structured_content["files"][0]["path"] == "plot.png"
        seen = await call(client, "read_file", path="/data/plot.png", **here)
        assert any(isinstance(each, ImageContent) for each in seen.content)
        await call(client, "write_file", path="uploads/a.txt", content="hé", **here)
        listed = await call(client, "list_files", path="/data/uploads", **here)
        assert [each["path"] for each in listed.structured_content["entries"]] == ["uploads/a.txt"]
        read = await call(client, "run_code", code="open('uploads/a.txt').read()", **here)
        assert read.structured_content["value"] == "hé"

        # The SDK goes on in the same session.
        async with (
            kernelbroker.connect(broker.url, token=broker.token) as sdk,
            sdk.session(here["session_id"], keep=True) as session,
        ):
            assert (await session.run("print(len(df))")).stdout == "1000\n"
        closed = await call(client, "close_session", **here)
        assert closed.structured_content["closed"] is True


async def test_a_traceback_has_its_useful_part(broker: BrokerProcess) -> None:
    """The frames of the user's code, and the end; not those inside of pandas."""
    async with connected(broker) as client:
        code = "import pandas as pd\ndef pick(frame):\n    return frame['missing']\n"
        failed = await call(client, "run_code", code=f"{code}pick(pd.DataFrame({{'a': [1]}}))")
        await call(client, "close_session", session_id=failed.structured_content["session_id"])
    text = text_of(failed)
    assert failed.is_error and "KeyError: 'missing'" in text
    assert "return frame['missing']" in text and "pick(pd.DataFrame" in text
    assert "frames inside of libraries" in text and "get_loc" not in text.replace(
        "in Index.get_loc", ""
    )
    assert len(text) < 3000, text


async def test_other_languages(broker: BrokerProcess) -> None:
    """Shell cells report their exit status as errors."""
    async with connected(broker) as client:
        shell = await call(client, "run_code", code="echo $((6 * 7))", language="shell")
        assert shell.structured_content["output"] == "42"
        here = {"session_id": shell.structured_content["session_id"]}
        failed = await call(client, "run_code", code="exit 3", language="shell", **here)
        assert failed.is_error
        await call(client, "close_session", **here)


def test_the_page_s_program_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    """The example of docs/mcp.md prints the value; the shown settings are JSON."""
    page = (ROOT / "docs" / "mcp.md").read_text()
    ((name, code),) = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.M | re.S)
    (tmp_path / name).write_text(code)
    environ = {**os.environ, "KERNELBROKER_URL": broker.url, "KERNELBROKER_TOKEN": broker.token}
    done = subprocess.run(
        [sys.executable, tmp_path / name],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr
    shown = re.findall(r"^```json\n(.*?)^```$", page, re.M | re.S)
    assert len(shown) == 3
    for each in shown:
        json.loads(each)


CSV = "city,people\nOslo,700000\nBergen,290000\nTromsø,78000\n"
ANALYZE = "def analyze(df):\n    return df.sort_values('people').head(2)\n"
OPERATE = (
    "def operation(dataframes, input_paths, output_path):\n"
    "    dataframes[0].head(1).to_csv(output_path, index=False)\n"
)


@pytest.mark.parametrize("era", ERAS)
async def test_the_analysis_tools_on_a_real_kernel(era: Era, broker: BrokerProcess) -> None:
    """Files are analysed with code and without, and made from others; failures are errors of the tool."""
    async with connected(broker, era, "/mcp/analysis") as client:
        assert "run_code" not in {tool.name for tool in (await client.list_tools()).tools}
        written = await call(client, "write_file", path="uploads/a.csv", content=CSV)
        here = {"session_id": written.structured_content["session_id"]}
        file = {"file_path": "uploads/a.csv", **here}
        usual = await call(client, "analyze_data", analysis_type="descriptive", **file)
        assert not usual.is_error, text_of(usual)
        assert "people" in text_of(usual)
        asked = await call(client, "analyze_data", analysis_type="small", code=ANALYZE, **file)
        frame = asked.structured_content["dataframe"]
        assert frame["shape"] == "2 rows × 2 columns"
        assert [each["city"] for each in asked.structured_content["data"]] == ["Tromsø", "Bergen"]
        wrong = await call(client, "analyze_data", analysis_type="a riddle", **file)
        assert wrong.is_error and "analyze(df)" in text_of(wrong)
        made = {"instruction": "the first", "input_paths": ["uploads/a.csv"], **here}
        done = await call(client, "table_operation", code=OPERATE, output_path="first.csv", **made)
        assert not done.is_error, text_of(done)
        path = done.structured_content["output_path"]
        read = await call(client, "read_file", path=path, **here)
        assert read.structured_content["text"] == "city,people\nOslo,700000\n"
    async with connected(broker, era) as client:
        await call(client, "close_session", **here)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_broker_restarted_in_the_middle_of_a_task(how: signal.Signals) -> None:
    """The next broker has the result of the task's cell, which ends before the first one or goes on."""
    code = "import pathlib, time\nprint('begun', flush=True)\n"
    code += "while not pathlib.Path('go').exists(): time.sleep(0.01)\n6 * 7"
    extension = {"extensions": {tasks.EXTENSION: {}}}
    with running_broker(TOKEN="t" * 32, MCP__TASK_AFTER=0.1) as broker:

        async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
            message = modern_message(method, params, extension)
            headers = modern_headers(method, params) | {"Authorization": f"Bearer {broker.token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                answer = await http.post(f"{broker.url}/mcp", json=message)
            return dict(modern_answer(answer.headers["content-type"], answer.text)["result"])

        async with connected(broker) as client:
            written = await call(client, "write_file", path="a", content="")
        session_id = written.structured_content["session_id"]
        arguments = {"code": code, "session_id": session_id, "timeout": 300}
        task = await ask("tools/call", {"name": "run_code", "arguments": arguments})
        assert task["resultType"] == "task"
        if how is signal.SIGKILL:
            broker.kill()
            await asyncio.to_thread(broker.start)
            state = await ask("tasks/get", {"taskId": task["taskId"]})
            assert state["status"] == "working"
        async with kernelbroker.connect(broker.url, broker.token) as sdk:
            session = await sdk.attach(session_id)
            if how is signal.SIGTERM:
                os.kill(broker.pid, how)
            await session.files.write("go", b"")
        if how is signal.SIGTERM:
            assert await asyncio.to_thread(broker.wait) == 0
            await asyncio.to_thread(broker.start)

        async def ended() -> bool:
            return bool((await ask("tasks/get", {"taskId": task["taskId"]}))["status"] != "working")

        await until(ended)
        state = await ask("tasks/get", {"taskId": task["taskId"]})
        assert state["status"] == "completed"
        assert state["result"]["structuredContent"]["output"] == "begun\n42"
