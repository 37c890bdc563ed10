"""The tools of the set `code`, called by the SDK's client in both eras of the protocol."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from kernelbroker_kernel.contract import (
    INTERNAL_CELL_CODE,
    INTERNAL_CELL_MIME,
    REPORT_CODE,
    REPORT_MIME,
)
from mcp.client.client import Client
from mcp_types import CallToolResult, ImageContent

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell, CellFailed
from tests.support.mcp import ERAS, Era, McpApi, text_of
from tests.support.waiting import until
from tests.support.world import interruptible

pytestmark = pytest.mark.parametrize("era", ERAS)

PNG = base64.b64encode(b"\x89PNG....").decode()
TABLE = {
    "var_name": "df",
    "kind": "pandas",
    "shape": [1000, 1],
    "columns": ["n"],
    "dtypes": {"n": "int64"},
    "preview": [{"n": i} for i in range(3)],
    "markdown": "| n |\n|---|\n| 0 |",
    "memory_usage": 8,
}


async def prints(cell: Cell) -> None:
    cell.stdout("hello\n")


async def run(client: Client, code: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool("run_code", {"code": code, **arguments})
    assert isinstance(result, CallToolResult)
    return result


def session_of(result: CallToolResult) -> str:
    session_id = result.structured_content["session_id"]
    assert f'session_id: "{session_id}"' in text_of(result)
    return str(session_id)


async def test_a_cell_is_run_and_its_session_named(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """run_code answers with the output, and names the session in the content and in words."""
    backend.scripts["print('hello')"] = prints
    async with api.client(era) as client:
        result = await run(client, "print('hello')")
    assert not result.is_error
    assert result.structured_content["output"] == "hello"
    data = ("stdout", "stderr", "exit_code", "sandbox_type")
    assert [result.structured_content[name] for name in data] == ["hello\n", "", 0, "subprocess"]
    assert text_of(result).startswith("hello\n")
    session = api.world.registry.get(session_of(result))
    assert session.options.metadata == {"opened_by": "mcp", "used_once": True}
    assert [each.origin for each in session.executions.values()] == [("mcp", "default")]


async def test_a_session_is_a_handle(era: Era, api: McpApi, backend: FakeBackend) -> None:
    """A call with the session's id runs there, also one that the native API has opened."""
    opened = await api.world.open("of-the-sdk")
    async with api.client(era) as client:
        result = await run(client, "x = 1", session_id=opened.id)
        assert session_of(result) == "of-the-sdk"
        assert [each.request.code for each in opened.executions.values()] == ["x = 1"]
        first, second = await run(client, "1"), await run(client, "2", session_id="of-the-sdk")
        assert session_of(second) == "of-the-sdk"
        # A connection of the older revisions goes on with its last session; there are none any more.
        assert (session_of(first) == "of-the-sdk") == (era == "legacy")


async def test_the_last_session_of_a_connection_is_replaced_when_it_has_ended(
    era: Era, api: McpApi
) -> None:
    """A call that names no session opens a new one if the last one is closed."""
    async with api.client(era) as client:
        first = session_of(await run(client, "1"))
        closed = await client.call_tool("close_session", {"session_id": first})
        assert closed.structured_content == {"session_id": first, "closed": True}
        assert session_of(await run(client, "2")) != first


async def test_what_single_calls_leave_closes_soon(era: Era, api: McpApi) -> None:
    """A session that was opened unasked lives for long only if a second call uses it."""

    async def seen(session_id: str) -> tuple[float, dict[str, Any]]:
        answer = await api.api.ask("GET", f"/api/v1/sessions/{session_id}")
        return answer.json["idle_timeout"], answer.json["metadata"]

    usual = 1800.0
    async with api.client(era) as client:
        first = session_of(await run(client, "1"))
        assert await seen(first) == (300.0, {"opened_by": "mcp", "used_once": True})
    async with api.client(era) as client:  # another connection, which names it
        await run(client, "2", session_id=first)
        assert await seen(first) == (usual, {"opened_by": "mcp"})
        named = await client.call_tool("create_session", {"name": "asked-for"})
        assert await seen(named.structured_content["session_id"]) == (usual, {"opened_by": "mcp"})
    async with api.client(era) as client:
        second = session_of(await run(client, "1"))
        again = session_of(await run(client, "2"))
        # A connection of the older revisions goes on with its last session.
        assert (again == second) == (era == "legacy")
        expected = usual if era == "legacy" else 300.0
        assert (await seen(again))[0] == expected


@pytest.mark.parametrize("session_id", ["unknown", "closed", "../x"])
async def test_a_session_that_is_not_open_is_an_error_of_the_tool(
    era: Era, api: McpApi, session_id: str
) -> None:
    """The error says what to do, and names the session."""
    await (await api.world.open("closed")).close("the test closed it")
    async with api.client(era) as client:
        for tool, arguments in {
            "run_code": {"code": "1"},
            "get_table": {"name": "df"},
            "list_files": {},
            "interrupt": {},
            "close_session": {},
        }.items():
            result = await client.call_tool(tool, {**arguments, "session_id": session_id})
            assert (result.is_error and session_id in text_of(result)) or "invalid" in text_of(
                result
            )
    assert not api.world.registry.list()


async def test_a_failed_cell_is_an_error_of_the_tool(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """The traceback is in the text, the error's parts are in the structured content."""

    async def fails(cell: Cell) -> None:
        cell.stdout("before\n")
        raise CellFailed("ValueError", "no such thing")

    backend.scripts["fail()"] = fails
    async with api.client(era) as client:
        result = await run(client, "fail()")
    assert result.is_error
    assert "before" in text_of(result) and "ValueError" in text_of(result)
    assert result.structured_content["error"] == {
        "name": "ValueError",
        "message": "no such thing",
        "cause": "exception",
    }
    assert "\x1b" not in text_of(result)


async def test_pictures_are_images(era: Era, api: McpApi, backend: FakeBackend) -> None:
    """Pictures that models read are image content; others, and more than fit, are counted."""

    async def shows(cell: Cell) -> None:
        for _ in range(10):
            cell.display({"image/png": PNG, "text/plain": "<Figure>"})
        cell.display({"image/svg+xml": "<svg/>"})

    backend.scripts["plot()"] = shows
    async with api.client(era) as client:
        result = await run(client, "plot()")
    images = [each for each in result.content if isinstance(each, ImageContent)]
    assert [(each.mime_type, each.data) for each in images] == [("image/png", PNG)] * 8
    assert "3 of 11 pictures are not shown" in text_of(result)
    assert result.structured_content["images"] == 11


async def test_the_last_expression_s_table_is_text_and_records(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """The model reads Markdown, the program gets the records; the value's own text is left out."""

    async def shows(cell: Cell) -> None:
        cell.send(
            "iopub",
            "execute_result",
            {"data": {"text/plain": "the repr"}, "metadata": {}, "execution_count": 1},
        )

    async def reports(cell: Cell) -> None:
        assert cell.metadata["kernelbroker"]["report"]["result_var"] == "_"
        cell.display({REPORT_MIME: {"dataframe": {**TABLE, "var_name": "_"}}})

    backend.scripts |= {"df": shows, REPORT_CODE: reports}
    async with api.client(era) as client:
        result = await run(client, "df")
        assert "| n |" in text_of(result) and "the repr" not in text_of(result)
        assert result.structured_content["table"]["records"] == [{"n": 0}, {"n": 1}, {"n": 2}]
        backend.scripts["f()"] = prints
        older = await run(client, "f()")  # its value is None, so that `_` is an older one
        assert "table" not in older.structured_content and "| n |" not in text_of(older)


async def test_a_page_of_a_table(era: Era, api: McpApi, backend: FakeBackend) -> None:
    """get_table passes the page on to the kernel, and answers with text and records."""
    asked: list[Any] = []

    async def answers(cell: Cell) -> None:
        asked.append(cell.metadata["kernelbroker"].get("page"))
        cell.display({INTERNAL_CELL_MIME: {"page": TABLE}})

    backend.scripts[INTERNAL_CELL_CODE] = answers
    async with api.client(era) as client:
        where = {"name": "df", "offset": 20, "limit": 3, "sort_by": "n"}
        result = await client.call_tool("get_table", where)
        assert not result.is_error, text_of(result)
        assert "df: 1,000 rows × 1 columns" in text_of(result) and "| n |" in text_of(result)
        assert result.structured_content["table"]["offset"] == 20
        assert len(result.structured_content["table"]["records"]) == 3
        wrong = await client.call_tool("get_table", {"name": "not a name"})
        assert wrong.is_error and "identifier" in text_of(wrong)
    assert asked == [{**where, "descending": False}]


async def test_packages_are_installed(era: Era, api: McpApi, backend: FakeBackend) -> None:
    """A template without a network and wheels refuses, and says so."""
    async with api.client(era) as client:
        result = await client.call_tool("install_packages", {"packages": ["numpy"]})
        assert result.is_error and "packages.wheels" in text_of(result)
        assert "session_id" in result.structured_content


async def test_sessions_are_opened_restarted_and_interrupted(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """The tools for sessions do what the use cases do."""
    backend.scripts["wait()"] = interruptible
    async with api.client(era) as client:
        first = await client.call_tool("create_session", {"name": "mine"})
        again = await client.call_tool("create_session", {"name": "mine"})
        assert session_of(first) == session_of(again) == "mine"
        assert "open already" in text_of(again)
        wrong = await client.call_tool("create_session", {"template": "none"})
        assert wrong.is_error and "none" in text_of(wrong)

        running = asyncio.create_task(run(client, "wait()", session_id="mine"))
        session = api.world.registry.get("mine")
        await until(lambda: bool(backend.cells))
        assert session.state == "busy"
        result = await client.call_tool("interrupt", {"session_id": "mine"})
        assert result.structured_content["interrupted"] is True
        assert (await running).structured_content["error"]["cause"] == "interrupted"

        restarted = await client.call_tool("restart_session", {"session_id": "mine"})
        assert restarted.structured_content["restarted"] is True and session.restarts == 1


async def test_files_are_written_read_and_listed(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """Texts are read in parts, pictures are shown, other files are described."""
    async with api.client(era) as client:
        text = "ä" * 15_000
        written = await client.call_tool("write_file", {"path": "/data/a.txt", "content": text})
        where = {"session_id": session_of(written), "path": "a.txt"}
        assert written.structured_content["size"] == 30_000
        first = await client.call_tool("read_file", {**where, "limit": 1001})
        assert first.structured_content["text"] == "ä" * 500
        assert first.structured_content["next_offset"] == 1000
        rest = await client.call_tool("read_file", {**where, "offset": 29_000})
        assert rest.structured_content["text"] == "ä" * 500
        assert "next_offset" not in rest.structured_content

        png = {**where, "path": "a.png", "content": PNG, "encoding": "base64"}
        await client.call_tool("write_file", png)
        shown = await client.call_tool("read_file", {**where, "path": "a.png"})
        (image,) = [each for each in shown.content if isinstance(each, ImageContent)]
        assert image.data == PNG
        binary = {**where, "path": "b.bin", "content": "AAEC", "encoding": "base64"}
        await client.call_tool("write_file", binary)
        described = await client.call_tool("read_file", {**where, "path": "b.bin"})
        assert "3 bytes, not text" in text_of(described)
        missing = await client.call_tool("read_file", {**where, "path": "none"})
        assert missing.is_error and "no such file" in text_of(missing)
        bad = await client.call_tool("write_file", {**binary, "content": "?"})
        assert bad.is_error and "base64" in text_of(bad)
        listed = await client.call_tool("list_files", {"session_id": where["session_id"]})
        assert listed.structured_content["entries"] == []


async def test_every_tool_is_described(era: Era, api: McpApi) -> None:
    """Each tool has schemas of its input and output, and says what it changes."""
    async with api.client(era) as client:
        listed = await client.list_tools()
    tools = {tool.name: tool for tool in listed.tools}
    assert set(tools) == {
        "run_code",
        "install_packages",
        "get_table",
        "create_session",
        "close_session",
        "restart_session",
        "interrupt",
        "list_files",
        "read_file",
        "write_file",
        "analyze_data",
        "table_operation",
    }
    for tool in tools.values():
        assert tool.description and tool.title and tool.annotations
        assert tool.input_schema["type"] == "object" and tool.output_schema is not None
        assert "session_id" in tool.output_schema["properties"]
        assert tool.annotations.read_only_hint is not None
        assert tool.annotations.destructive_hint is not None
    assert tools["get_table"].annotations.read_only_hint  # type: ignore[union-attr]
    if era != "legacy":
        assert listed.ttl_ms == 300_000 and listed.cache_scope == "private"


async def test_each_set_of_tools_has_its_own_address(era: Era, api: McpApi) -> None:
    """/mcp/analysis cannot run code."""
    async with api.client(era, path="/mcp/code") as client:
        assert "run_code" in {tool.name for tool in (await client.list_tools()).tools}
    async with api.client(era, path="/mcp/analysis") as client:
        assert "run_code" not in {tool.name for tool in (await client.list_tools()).tools}
