"""The page that shows results, as clients get it, and in Chromium with a host of the test."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from kernelbroker_server.mcp.apps import EXTENSION, MIME_TYPE, PAGE

from tests.api.test_browsers import Page, browser
from tests.support.mcp import McpApi
from tests.support.waiting import DEADLINE_S

SHOWS: dict[str, Any] = {"extensions": {EXTENSION: {"mimeTypes": [MIME_TYPE]}}}
"""The capabilities of a client that shows pages."""
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CONTENT = [
    {"type": "text", "text": "for the model"},
    {"type": "image", "mimeType": "image/png", "data": DOT},
]
CELL = {"session_id": "mine", "output": "<img src=x onerror=alert(1)>"}
ROWS = [{"n": i, "<b>t</b>": None} for i in range(500)]
TABLE = {
    "name": "result",
    "shape": [1200, 2],
    "offset": 0,
    "columns": ["n", "<b>t</b>"],
    "records": ROWS[:50],
}
FRAME = {
    "var_name": "result",
    "shape": "1,200 rows × 2 columns",
    "columns": ["n", "<b>t</b>"],
    "preview": ROWS[:20],
}
RESULTS = {
    "table": {**CELL, "table": TABLE},
    "analysis": {**CELL, "dataframe": FRAME, "data": ROWS},
}
HOST = """
const frame = document.createElement('iframe');
frame.srcdoc = HTML;
document.documentElement.append(frame);
const sent = [], page = () => frame.contentDocument, done = (found) =>
  fetch('/result', {method: 'POST', body: JSON.stringify(found)});
const post = (message) => frame.contentWindow.postMessage({jsonrpc: '2.0', ...message}, '*');
const seen = () => ({
  rows: page().querySelectorAll('tbody tr').length,
  place: page().getElementById('place').textContent,
});
const found = {};
const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
};
addEventListener('message', ({data}) => {
  sent.push(data.method);
  if (data.method === 'ui/initialize') {
    found.version = data.params.protocolVersion;
    post({id: data.id, result: {hostContext: {theme: 'dark'}}});
  } else if (data.method === 'ui/notifications/initialized') {
    post({method: 'ui/notifications/tool-result', params: RESULT});
    until(() => seen().rows === 50).then(() => {
      found.first = {
        ...seen(),
        output: page().getElementById('output').textContent,
        pictures: page().querySelectorAll('#pictures img').length,
        injected: page().querySelectorAll('#output img, th b').length,
        theme: page().documentElement.dataset.theme,
        heads: [...page().querySelectorAll('th')].map((th) => th.textContent),
      };
      page().getElementById('next').click();
    });
  } else if (data.method === 'tools/call') {
    (found.calls ??= []).push(data.params);
    const {offset} = data.params.arguments;
    const table = {...TABLE, offset, records: [{n: offset}]};
    post({id: data.id, result: {structuredContent: {table}}});
    until(() => seen().place.startsWith(`rows ${offset + 1} to ${offset + 1} `)).then(() => {
      (found.pages ??= []).push(seen());
      if (found.calls.length === 1) page().querySelector('th button').click();
      else done({...found, resized: sent.includes('ui/notifications/size-changed')});
    });
  }
});
"""
SORTS = """
const frame = document.createElement('iframe');
frame.srcdoc = HTML;
document.documentElement.append(frame);
const page = () => frame.contentDocument, cells = () => [...page().querySelectorAll('td')];
const post = (message) => frame.contentWindow.postMessage({jsonrpc: '2.0', ...message}, '*');
let asked = false;
addEventListener('message', async ({data}) => {
  asked ||= data.method === 'tools/call';
  if (data.method === 'ui/initialize') post({id: data.id, result: {}});
  if (data.method !== 'ui/notifications/initialized') return;
  post({method: 'ui/notifications/tool-result', params: RESULT});
  while (cells().length !== 3) await new Promise((resolve) => setTimeout(resolve, 10));
  page().querySelector('th button').click();
  const rows = cells().map((td) => td.textContent), place = page().getElementById('place').textContent;
  fetch('/result', {method: 'POST', body: JSON.stringify({rows, place, asked})});
});
"""


async def test_the_page_is_a_resource_of_its_tools(api: McpApi) -> None:
    """Tools name the page; its own tool is listed only for clients that show pages."""
    for capabilities, listed in [(SHOWS, True), ({}, False)]:
        tools = (await api.post("tools/list", {}, capabilities))["result"]["tools"]
        by_name = {tool["name"]: tool for tool in tools}
        assert by_name["run_code"]["_meta"]["ui"]["resourceUri"] == PAGE
        assert by_name["get_table"]["_meta"]["ui"]["resourceUri"] == PAGE
        assert ("table_page" in by_name) == listed
    assert by_name.keys() >= {"list_files"} and "_meta" not in by_name["list_files"]
    hello = (await api.post("server/discover", {}))["result"]
    assert EXTENSION in hello["capabilities"]["extensions"]
    (resource,) = (await api.post("resources/list", {}))["result"]["resources"]
    assert (resource["uri"], resource["mimeType"]) == (PAGE, MIME_TYPE)
    assert (await api.post("resources/templates/list", {}))["result"]["resourceTemplates"] == []
    (content,) = (await api.post("resources/read", {"uri": PAGE}))["result"]["contents"]
    assert content["mimeType"] == MIME_TYPE
    html = content["text"]
    assert "default-src 'none'" in html and "http://" not in html and "https://" not in html
    assert len(html) < 10_000
    error = (await api.post("resources/read", {"uri": "ui://other"}))["error"]
    assert "there is no resource" in error["message"]


async def test_a_client_of_an_older_revision_reads_the_page(api: McpApi) -> None:
    """Resources are served in both eras."""
    async with api.client("legacy") as client:
        (resource,) = (await client.list_resources()).resources
        assert (await client.list_resource_templates()).resource_templates == []
        (content,) = (await client.read_resource(resource.uri)).contents
        assert content.mime_type == MIME_TYPE


@pytest.mark.parametrize("kind", RESULTS)
async def test_the_page_in_a_browser(api: McpApi, kind: str) -> None:
    """It shows output, pictures and a table, pages and sorts by the tool, and runs none of the output."""
    (content,) = (await api.post("resources/read", {"uri": PAGE}))["result"]["contents"]
    page = Page()
    html = json.dumps(content["text"]).replace("</", "<\\/")
    result = json.dumps({"content": CONTENT, "structuredContent": RESULTS[kind]})
    page.script = f"const HTML = {html}, RESULT = {result}, TABLE = {json.dumps(TABLE)};{HOST}"
    async with page.served() as url, browser(url), asyncio.timeout(4 * DEADLINE_S):
        found = await page.result
    assert found["version"] == "2026-01-26" and found["resized"]
    assert found["first"] == {
        "rows": 50,
        "place": "rows 1 to 50 of 1200",
        "output": "<img src=x onerror=alert(1)>",
        "pictures": 1,
        "injected": 0,
        "theme": "dark",
        "heads": ["n", "<b>t</b>"],
    }
    where = {"session_id": "mine", "name": "result", "limit": 50}
    assert found["calls"] == [
        {"name": "table_page", "arguments": {**where, "offset": 50}},
        {
            "name": "table_page",
            "arguments": {**where, "offset": 0, "sort_by": "n", "descending": False},
        },
    ]
    assert found["pages"] == [
        {"rows": 1, "place": "rows 51 to 51 of 1200"},
        {"rows": 1, "place": "rows 1 to 1 of 1200"},
    ]


async def test_a_whole_result_is_sorted_on_the_page(api: McpApi) -> None:
    """All rows of a small analysis are there: the page sorts them itself, and asks for no more."""
    (content,) = (await api.post("resources/read", {"uri": PAGE}))["result"]["contents"]
    rows = [{"n": 2}, {"n": None}, {"n": 1}]
    frame = {"var_name": "result", "shape": "3 行 × 1 列", "columns": ["n"], "preview": rows}
    result = json.dumps({"structuredContent": {**CELL, "dataframe": frame, "data": rows}})
    page = Page()
    html = json.dumps(content["text"]).replace("</", "<\\/")
    page.script = f"const HTML = {html}, RESULT = {result};{SORTS}"
    async with page.served() as url, browser(url), asyncio.timeout(4 * DEADLINE_S):
        found = await page.result
    assert found == {"rows": ["1", "2", ""], "place": "rows 1 to 3 of 3", "asked": False}
