"""Sessions of every client appear at once, with each cell's client and user, while people watch."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from playwright.sync_api import expect

from tests.e2b.support import DIRECTORY as E2B_CLIENTS
from tests.e2b.support import GET, E2bClients
from tests.e2e.support import whole_system
from tests.jupyter.support import KernelClient, connected
from tests.support.requires import require

from .conftest import TIMEOUT_MS, Console, OpenPage
from .test_watching import see

pytestmark = whole_system

Work = Callable[[Console, Callable[[str], None]], None]
"""A client's work: opens a session, tells its id, and runs `print('hello of NAME')` when it returns."""


def by_sdk(console: Console, opened: Callable[[str], None]) -> None:
    with console.connect() as broker, broker.session(keep=True) as session:
        opened(session.session_id)
        assert session.run("print('hello of SDK')").success


def by_mcp(console: Console, opened: Callable[[str], None]) -> None:
    @asynccontextmanager
    async def client() -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {console.alice}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(
                streamable_http_client(f"{console.broker.url}/mcp", http_client=http),
                mode="2026-07-28",
            ) as client,
        ):
            yield client

    async def work() -> None:
        async with client() as mcp:
            answer = await mcp.call_tool("create_session", {})
            session_id = str(answer.structured_content["session_id"])
            await asyncio.to_thread(opened, session_id)
            code = {"code": "print('hello of MCP')", "session_id": session_id}
            assert not (await mcp.call_tool("run_code", code)).is_error

    asyncio.run(work())


def by_e2b(console: Console, opened: Callable[[str], None]) -> None:
    """E2B's client sends the access token of the sandbox with a cell, and no key."""
    require("npm")
    subprocess.run([GET, E2B_CLIENTS], check=True, timeout=300, stdin=subprocess.DEVNULL)
    e2b = E2bClients(console.broker, {"E2B_API_KEY": console.alice})
    session_id = e2b.python(
        """
        from e2b_code_interpreter import Sandbox
        report(Sandbox.create().sandbox_id)
        """
    )
    opened(session_id)
    e2b.python(
        """
        import sys
        from e2b_code_interpreter import Sandbox
        sandbox = Sandbox.connect(SANDBOX)
        report(sandbox.run_code("print('hello of E2B')").logs.stdout)
        """.replace("SANDBOX", repr(session_id))
    )


def by_jupyter(console: Console, opened: Callable[[str], None]) -> None:
    async def work() -> None:
        url = f"{console.broker.url}/jupyter/api/kernels"
        headers = {"Authorization": f"token {console.alice}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            kernel_id = (await http.post(url, json={})).json()["id"]
        await asyncio.to_thread(opened, kernel_id)
        async with connected(console.broker, kernel_id, token=console.alice) as kernel:
            await run(kernel)

    async def run(kernel: KernelClient) -> None:
        await kernel.until("execute_reply", await kernel.execute("print('hello of Jupyter')"))

    asyncio.run(work())


@pytest.fixture
def at_work() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize(
    ("name", "work"),
    [("SDK", by_sdk), ("MCP", by_mcp), ("E2B", by_e2b), ("Jupyter", by_jupyter)],
)
def test_a_session_of_any_client_appears_at_once(
    name: str, work: Work, console: Console, open_page: OpenPage, at_work: ThreadPoolExecutor
) -> None:
    """Opened, it is in the list with who opened it; its cells have their user, client, code and output."""
    page = open_page(token=console.bob)
    found: list[str] = []
    is_open, go_on = threading.Event(), threading.Event()

    def opened(session_id: str) -> None:
        found.append(session_id)
        is_open.set()
        assert go_on.wait(60)

    working = at_work.submit(work, console, opened)
    try:
        assert is_open.wait(120), working.result(0)
        row = page.locator("tr", has_text=found[0])
        for text in (name, "alice", "nothing yet"):
            expect(row).to_contain_text(text, timeout=TIMEOUT_MS)
        page.goto(f"{console.url}#/sessions/{found[0]}")
        see(page, ".empty-title", "Nothing has run yet")
        go_on.set()
        cell = page.locator(".cell", has_text=f"hello of {name}")
        expect(cell.locator(".client")).to_have_text(name, timeout=TIMEOUT_MS)
        expect(cell).to_contain_text("alice", timeout=TIMEOUT_MS)
        see(page, ".cell.ok .line", f"hello of {name}")
        working.result(120)
    finally:
        go_on.set()
        for session_id in found:
            console.call("DELETE", f"/sessions/{session_id}")
