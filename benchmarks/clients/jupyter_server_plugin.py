"""Lets the tests of Jupyter Server's API ask a broker at KERNELBROKER_URL, and not a server of their own.

Load it with ``pytest -p jupyter_server_plugin``. Each test begins without sessions. What it sets or makes
in its own server's objects and directories is not the broker's. Of a test that runs with several
configurations of a server, the first is run.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

URL, TOKEN = os.environ["KERNELBROKER_URL"], os.environ["KERNELBROKER_TOKEN"]
BASE = "/jupyter/"
HEADERS = {"Authorization": f"token {TOKEN}"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "flaky: of a plugin that need not be there")
    # After the plugins of conftest.py, whose fixtures have the same names.
    config.pluginmanager.register(OfBroker(), "fixtures of a broker")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(f"{item.path}::{getattr(item, 'originalname', item.name)}", item)
    config.hook.pytest_deselected(items=[each for each in items if each not in first.values()])
    items[:] = first.values()


def address(parts: tuple[str, ...], params: dict[str, str] | None, scheme: str = "http") -> str:
    path = urllib.parse.quote("/".join(part.strip("/") for part in parts))
    query = urllib.parse.urlencode(params or {})
    return f"{scheme}{URL.removeprefix('http')}{BASE}{path}?{query}"


class OfBroker:
    """The fixtures by which the tests reach their server."""

    @pytest.fixture
    def jp_base_url(self) -> str:
        return BASE

    @pytest.fixture
    def jp_auth_header(self) -> dict[str, str]:
        return dict(HEADERS)

    @pytest.fixture
    def jp_serverapp(self) -> SimpleNamespace:
        manager = SimpleNamespace(use_pending_kernels=False)
        return SimpleNamespace(kernel_manager=manager, session_manager=manager, base_url=BASE)

    @pytest.fixture(autouse=True)
    def without_sessions(self, jp_asyncio_loop: Any) -> None:
        jp_asyncio_loop.run_until_complete(close_all())

    @pytest.fixture
    def jp_fetch(self) -> Callable[..., Awaitable[Any]]:
        def fetch(
            *parts: str, headers: Any = None, params: Any = None, **options: Any
        ) -> Awaitable[Any]:
            options.setdefault("request_timeout", 20)
            return AsyncHTTPClient().fetch(
                address(parts, params), headers=HEADERS | (headers or {}), **options
            )

        return fetch

    @pytest.fixture
    def jp_ws_fetch(self) -> Callable[..., Awaitable[WebSocketClientConnection]]:
        def fetch(
            *parts: str, headers: Any = None, params: Any = None, **_: Any
        ) -> Awaitable[WebSocketClientConnection]:
            return websocket_connect(
                HTTPRequest(address(parts, params, "ws"), headers=HEADERS | (headers or {}))
            )

        return fetch


async def close_all() -> None:
    client, headers = AsyncHTTPClient(), {"Authorization": f"Bearer {TOKEN}"}
    listed = await client.fetch(f"{URL}/api/v1/sessions", headers=headers)
    for session in json.loads(listed.body)["sessions"]:
        path = f"/api/v1/sessions/{session['session_id']}"
        await client.fetch(URL + path, method="DELETE", headers=headers)
