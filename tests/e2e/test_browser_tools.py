"""The browser as tools of MCP and LangChain, by a router and an engine; and an external one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kernelbroker
import pytest
from kernelbroker.agents import (
    Action,
    BrowserAction,
    BrowserRouter,
    ExecutionEngine,
)

from tests.support.requires import requires

with warnings.catch_warnings(action="ignore"):  # of libraries that are not ours
    from kernelbroker.langchain import get_browser_tools

from tests.e2e.pages import SERVER, SITE
from tests.e2e.support import DEADLINE_S, BrokerProcess, call, running_broker, whole_system
from tests.e2e.test_mcp import call as call_tool
from tests.e2e.test_mcp import connected

pytestmark = [
    *whole_system,
    requires("chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NAMES = [
    "browser_navigate",
    "browser_click",
    "browser_fill",
    "browser_text",
    "browser_screenshot",
    "browser_evaluate",
    "browser_download",
]
TEMPLATES = {"web": {"profile": "browser", "pool": {"min_size": 0, "max_size": 3}}}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A browser outside of the broker."""
    program = shutil.which("chromium")
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            file = Path(profile, "DevToolsActivePort")
            deadline = time.monotonic() + DEADLINE_S
            while not file.exists() or not file.read_text().strip():
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield f"http://127.0.0.1:{file.read_text().splitlines()[0]}"
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def broker(endpoint: str) -> Iterator[BrokerProcess]:
    with running_broker(
        TEMPLATES=json.dumps(TEMPLATES),
        MCP__TOOL_SETS='["code", "browser"]',
        BROWSER__ENDPOINT=endpoint,
    ) as broker:
        yield broker


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


@pytest.fixture
async def session(client: kernelbroker.Broker) -> AsyncIterator[kernelbroker.Session]:
    """One session for the tests of this module: the start of a browser takes seconds."""
    async with client.session("browsing", template="web", keep=True) as session:
        if not (await session.run("'server' in globals() or None")).outputs:
            assert (await session.run(SERVER)).success
        yield session


async def test_health_tells_where_browsers_are(client: kernelbroker.Broker) -> None:
    """`/health` names the templates with a browser, what is missing there, and the external one."""
    health = await client.health()
    assert health["browser"] == {"templates": {"web": "ok"}, "external": True}
    assert health["routing"]["aio_sandbox"]["template"] == "web"


async def test_mcp(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """A model opens a page, reads it, fills in its form, looks at it, and downloads a file, by tools."""
    async with connected(broker, path="/mcp/browser") as mcp:
        tools = (await mcp.list_tools()).tools
        assert [tool.name for tool in tools] == NAMES
        where = {"session_id": session.session_id}
        opened = await call_tool(mcp, "browser_navigate", url=f"{SITE}/", **where)
        assert not opened.is_error and opened.structured_content is not None
        assert opened.structured_content["result"]["title"] == "Order"
        text = _text(await call_tool(mcp, "browser_text", **where))
        assert "# An order" in text and "selector=#name" in text
        await call_tool(mcp, "browser_fill", selector="#name", value="Ada", **where)
        clicked = await call_tool(mcp, "browser_click", selector="text=Send", **where)
        assert "Sent <" in _text(clicked)
        looked = await call_tool(mcp, "browser_screenshot", **where)
        (picture,) = [each for each in looked.content if each.type == "image"]
        assert picture.mime_type == "image/png"
        assert base64.b64decode(picture.data).startswith(b"\x89PNG")
        value = await call_tool(mcp, "browser_evaluate", script="1 + 1", **where)
        assert value.structured_content["result"]["value"] == 2
        saved = await call_tool(mcp, "browser_download", url=f"{SITE}/data.csv", **where)
        assert saved.structured_content["result"]["path"] == "downloads/data.csv"
        missing = await call_tool(mcp, "browser_click", selector="#no", timeout=0.2, **where)
        assert missing.is_error and missing.structured_content is not None
        assert missing.structured_content["error"]["name"] == "not_found"


def _text(result: Any) -> str:
    return "".join(each.text for each in result.content if each.type == "text")


async def test_mcp_opens_a_session_that_can_browse(broker: BrokerProcess) -> None:
    """A call that names no session gets one with a browser, and code goes on in it."""
    async with connected(broker) as mcp:
        page = "data:text/html,<title>own</title>"
        opened = await call_tool(mcp, "browser_navigate", url=page)
        assert opened.structured_content is not None, opened
        where = {"session_id": opened.structured_content["session_id"]}
        code = "from kernelbroker_kernel import browser; browser.evaluate('document.title')"
        ran = await call_tool(mcp, "run_code", code=code, **where)
        assert ran.structured_content is not None and ran.structured_content["value"] == "own"
        await call_tool(mcp, "close_session", **where)


async def test_langchain(client: kernelbroker.Broker, session: kernelbroker.Session) -> None:
    """The tools of LangChain have the same names; a screenshot has a picture that models see."""
    tools = {each.name: each for each in get_browser_tools(client, session)}
    assert list(tools) == NAMES
    opened = json.loads(await tools["browser_navigate"].ainvoke({"url": f"{SITE}/next"}))
    assert (opened["success"], opened["title"]) == (True, "Next")
    text = json.loads(await tools["browser_text"].ainvoke({}))["text"]
    assert text == "The next page"
    content = await tools["browser_screenshot"].ainvoke({"full_page": True})
    assert [each["type"] for each in content] == ["text", "image"]
    assert base64.b64decode(content[1]["base64"]).startswith(b"\x89PNG")
    failed = json.loads(await tools["browser_click"].ainvoke({"selector": "###"}))
    assert (failed["success"], failed["code"]) == (False, "failed")
    with pytest.raises(TypeError, match="connect"):
        get_browser_tools("broker")  # type: ignore[arg-type]


async def test_the_router_chooses_a_browser(
    client: kernelbroker.Broker, session: kernelbroker.Session
) -> None:
    """Files and research need the sandbox's browser; else the external one is taken; a choice wins."""
    router = BrowserRouter(session, client)
    page = BrowserAction("navigate", {"url": f"{SITE}/next"})  # only in the sandbox
    for options in ({"needs_file_access": True}, {"is_research": True}, {"backend": "sandbox"}):
        result = await router.execute(page, **options)  # type: ignore[arg-type]
        assert (result.success, result.data["title"], result.error) == (True, "Next", None)
        assert result.screenshot is not None
    outside = await router.execute(page)
    assert not outside.success and "ERR_CONNECTION_REFUSED" in str(outside.error)
    chosen = await router.execute(page, needs_file_access=True, backend="cdp")
    assert not chosen.success
    text = await router.execute(BrowserAction("text"), is_research=True)
    assert text.data["text"] == "The next page"


async def test_the_router_never_raises(
    client: kernelbroker.Broker, session: kernelbroker.Session
) -> None:
    """Unknown actions and backends, missing browsers, invalid parameters and lost brokers are results."""
    router, nothing = BrowserRouter(session, client), BrowserRouter()
    lost = BrowserRouter(broker=kernelbroker.connect("http://127.0.0.1:9", "x"))
    navigate = BrowserAction("navigate", {"url": f"{SITE}/next"})
    for result, reason in [
        (await router.execute(BrowserAction("fly"), backend="sandbox"), "unknown action 'fly'"),
        (await router.execute(BrowserAction("click", {"selector": "a"})), "unknown action 'click'"),
        (await router.execute(navigate, backend="moon"), "unknown backend 'moon'"),
        (await nothing.execute(navigate), "no external browser"),
        (await nothing.execute(navigate, is_research=True), "no browser in a sandbox"),
        (await router.execute(BrowserAction("navigate", {"url": 5}), backend="sandbox"), "url"),
        (await router.execute(BrowserAction("navigate", {"urls": "x"})), "urls"),
        (await router.execute(BrowserAction("navigate", "x")), "must be a dict"),  # type: ignore[arg-type]
        (await router.execute(BrowserAction(["x"])), "unknown action"),  # type: ignore[arg-type]
        (await lost.execute(navigate), "no broker at"),
    ]:
        assert result.success is False
        assert reason in str(result.error)


async def test_the_external_browser(broker: BrokerProcess, client: kernelbroker.Broker) -> None:
    """It opens pages of the web and takes pictures, and does not read files of its machine."""
    router = BrowserRouter(broker=client)
    await router.execute(BrowserAction("close"))
    health = f"{broker.url}/health"
    result = await router.execute(BrowserAction("navigate", {"url": health}))
    assert (result.success, result.data["url"], result.error) == (True, health, None)
    assert result.screenshot is not None and result.screenshot.startswith(b"\x89PNG")
    whole = await router.execute(BrowserAction("screenshot", {"full_page": True}))
    assert whole.data["url"] == health and whole.screenshot is not None
    assert (await router.execute(BrowserAction("close"))).success
    assert (await router.execute(BrowserAction("screenshot"))).data["url"] == "about:blank"
    for url in ("file:///etc/passwd", "chrome://version", "javascript:1", "http://", 7):
        refused = await router.execute(BrowserAction("navigate", {"url": url}))
        assert "http:// or https://" in str(refused.error)
    status, answer = await call(broker, "POST", "/api/v1/browser/click", {})
    assert (status, answer["error"]["code"]) == (404, "not_found")


@contextlib.contextmanager
def serving(pages: dict[str, tuple[int, dict[str, str], str]]) -> Iterator[str]:
    """A server with these pages: status, headers and HTML by path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, text = pages.get(self.path, (404, {}, ""))
            self.send_response(status)
            for name, value in {"Content-Type": "text/html", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_args: object) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


async def test_no_page_reaches_the_endpoint(
    endpoint: str, broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """No address, redirect or frame reaches DevTools, where the windows of all tenants are."""
    router = BrowserRouter(broker=client)
    port = urlsplit(endpoint).port
    for host in (
        "127.0.0.1",
        "localhost",
        "127.1",
        "[::1]",
        "0.0.0.0",
        "2130706433",
        "a.localhost",
    ):
        asked = BrowserAction("navigate", {"url": f"http://{host}:{port}/json/list"})
        refused = await router.execute(asked)
        assert "DevTools" in str(refused.error), host
    pages: dict[str, tuple[int, dict[str, str], str]] = {}
    ways = pages_that_close(endpoint, "")
    with serving(pages) as server:
        for path in ways:
            new = f"{endpoint}/json/new?about:blank"
            other = (await asyncio.to_thread(devtools, new, "PUT"))["id"]
            pages.update(pages_that_close(endpoint, other))
            shown = await router.execute(BrowserAction("navigate", {"url": f"{server}{path}"}))
            assert shown.success == (path not in ("/redirect", "/twice", "/file")), (path, shown)
            await asyncio.sleep(0.3)  # nothing tells that a page does not try any more
            targets = await asyncio.to_thread(devtools, f"{endpoint}/json/list")
            assert other in [each["id"] for each in targets], path
        plain = await router.execute(BrowserAction("navigate", {"url": f"{server}/plain"}))
        assert plain.data["title"] == "plain"
    await router.execute(BrowserAction("close"))


def pages_that_close(endpoint: str, target: str) -> dict[str, tuple[int, dict[str, str], str]]:
    """Pages that try to close a window of the browser, each in another way."""
    close = f"{endpoint}/json/close/{target}"
    hidden = close.replace("127.0.0.1", "localhost")
    worker = f"new Worker(URL.createObjectURL(new Blob([`fetch('{close}', {{mode: 'no-cors'}})`])))"
    return {
        "/redirect": (302, {"Location": close}, ""),
        "/twice": (302, {"Location": "/redirect"}, ""),
        "/refresh": (200, {}, f"<meta http-equiv=refresh content='0; url={close}'>x"),
        "/frame": (200, {}, f"<iframe src='{close}'></iframe><iframe src='{hidden}'></iframe>"),
        "/nested": (200, {}, f"<iframe srcdoc=\"<iframe src='{close}'></iframe>\"></iframe>"),
        "/image": (200, {}, f"<img src='{close}'><script src='{hidden}'></script>"),
        "/fetch": (200, {}, f"<script>fetch('{close}', {{mode: 'no-cors'}})</script>"),
        "/worker": (200, {}, f"<script>{worker}</script>"),
        "/form": (200, {}, f"<form id=f action='{close}'></form><script>f.submit()</script>"),
        "/plain": (200, {}, "<title>plain</title>"),
        "/file": (302, {"Location": "file:///etc/passwd"}, ""),
    }


def devtools(url: str, method: str = "GET") -> Any:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


async def test_the_engine_browses(client: kernelbroker.Broker) -> None:
    """`web_browsing` uses the browser of the session's sandbox, which shares the files of other actions."""
    async with ExecutionEngine("engine", broker=client) as engine:
        page = {"operation": "write", "path": "page.html", "content": "<title>Mine</title>words"}
        assert (await engine.execute(Action("file_operation", page))).success
        opened = await engine.execute(
            Action("web_browsing", {"action": "navigate", "url": "file:///data/page.html"})
        )
        assert opened.success, opened.error
        assert opened.data["title"] == "Mine"
        assert base64.b64decode(opened.data["screenshot"]).startswith(b"\xff\xd8")
        text = await engine.execute(Action("web_browsing", {"action": "text"}))
        assert text.data["text"] == "words"
        outside = {"action": "navigate", "url": "file:///data/page.html", "backend": "cdp"}
        assert not (await engine.execute(Action("web_browsing", outside))).success
        unknown = await engine.execute(Action("web_browsing", {"action": "fly"}))
        assert "unknown action 'fly'" in str(unknown.error)
    await engine.workspace.cleanup()
