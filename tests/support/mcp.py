"""The broker's MCP server on a real socket, and the SDK's own client for both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import httpx2
from kernelbroker_server.mcp.call import Options
from kernelbroker_server.mcp.surface import McpSurface
from kernelbroker_server.supervisor import Supervisor
from kernelbroker_server.tenants.jwt_tokens import Issuer
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from .backend import FakeBackend
from .http import TOKEN, Api, serving
from .world import World, world

Era: TypeAlias = Literal["2026-07-28", "legacy"]
ERAS: tuple[Era, Era] = ("2026-07-28", "legacy")
KEYS = [b"k" * 32]


@dataclass
class McpApi:
    api: Api
    surface: McpSurface
    supervisor: Supervisor

    async def restart(self) -> None:
        """Restart the server: what it keeps in memory is lost."""
        await self.supervisor.stop()
        self.surface.start(self.supervisor)

    @property
    def world(self) -> World:
        return self.api.world

    def url(self, path: str = "/mcp") -> str:
        return f"http://127.0.0.1:{self.api.port}{path}"

    async def post(
        self,
        method: str,
        params: dict[str, Any],
        capabilities: dict[str, Any] | None = None,
        *,
        path: str = "/mcp",
        token: str = TOKEN,
    ) -> Any:
        """Send one message of the revision 2026-07-28; returns the answer, which must be JSON-RPC."""
        message = modern_message(method, params, capabilities)
        headers = modern_headers(method, params)
        answer = await self.api.ask("POST", path, message, headers=headers, token=token)
        return modern_answer(answer.headers["content-type"], answer.body.decode())

    @asynccontextmanager
    async def second_server(self, **options: Any) -> AsyncIterator[McpApi]:
        """Another MCP server of the same broker, such as one after a restart."""
        async with (
            _surface(self.world, **options) as (surface, supervisor),
            serving(self.world, surfaces=surface.routes) as api,
        ):
            yield McpApi(api, surface, supervisor)

    @asynccontextmanager
    async def client(
        self, era: Era = "2026-07-28", *, path: str = "/mcp", token: str = TOKEN, **options: Any
    ) -> AsyncIterator[Client]:
        """Connect the SDK's client."""
        headers = {"Authorization": f"Bearer {token}"}
        timeout = httpx2.Timeout(60)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
            Client(
                streamable_http_client(self.url(path), http_client=http), mode=era, **options
            ) as client,
        ):
            yield client


def modern_message(
    method: str, params: dict[str, Any], capabilities: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A message of the revision 2026-07-28."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities or {},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


def modern_headers(method: str, params: dict[str, Any]) -> dict[str, str]:
    """The headers that such a message needs."""
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
    }
    if (name := params.get("name") or params.get("taskId") or params.get("uri")) is not None:
        headers["Mcp-Name"] = name
    return headers


def modern_answer(content_type: str, body: str) -> Any:
    """The answer, as JSON or as the last of server-sent events."""
    if content_type.startswith("text/event-stream"):
        data = [each for each in body.splitlines() if each.startswith("data: ")]
        return json.loads(data[-1].removeprefix("data: "))
    return json.loads(body)


@asynccontextmanager
async def mcp_api(
    backend: FakeBackend,
    *,
    world_options: dict[str, Any] | None = None,
    serving_options: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[McpApi]:
    async with (
        asyncio.timeout(60),
        world(backend, **(world_options or {})) as w,
        _surface(w, **options) as (surface, supervisor),
        serving(w, surfaces=surface.routes, **(serving_options or {})) as api,
    ):
        yield McpApi(api, surface, supervisor)


@asynccontextmanager
async def _surface(
    world: World,
    *,
    tool_sets: Sequence[str] = ("code", "analysis"),
    task_after: float = 5.0,
    hosts: Sequence[str] = (),
    issuer: Issuer | None = None,
) -> AsyncIterator[tuple[McpSurface, Supervisor]]:
    supervisor = Supervisor()
    options = Options(task_after=task_after)
    surface = McpSurface(
        tool_sets, world.store, version="0", keys=KEYS, options=options, hosts=hosts, issuer=issuer
    )
    surface.start(supervisor)
    try:
        yield surface, supervisor
    finally:
        await supervisor.stop()


def text_of(result: CallToolResult) -> str:
    """The text of a result."""
    return "\n".join(each.text for each in result.content if isinstance(each, TextContent))
