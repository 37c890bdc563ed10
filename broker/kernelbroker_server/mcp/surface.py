"""The whole MCP surface of a broker: its addresses, and the task that serves each of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tornado.web import RequestHandler

from ..sessions.store import EventStore
from ..supervisor import Supervisor
from ..tenants.jwt_tokens import Issuer
from .call import Options
from .endpoint import McpEndpoint
from .handler import McpHandler
from .resource_metadata import WELL_KNOWN, ResourceMetadata
from .server import ToolServer
from .tool_sets import tools_of

PATH = "/mcp"


class McpSurface:
    """The addresses `/mcp`, with all tools, and `/mcp/SET` for each set of tools.

    Args:
        hosts: the host names that requests may name; all if empty.
        issuer: whose JWTs are accepted, besides the broker's own tokens.
        keys: at least 32 bytes each; they must last, so that a restart does not void what clients echo.
    """

    def __init__(
        self,
        tool_sets: Sequence[str],
        store: EventStore,
        *,
        version: str,
        keys: Sequence[bytes],
        options: Options | None = None,
        hosts: Collection[str] = (),
        issuer: Issuer | None = None,
    ) -> None:
        self._hosts = hosts
        self._issuer = issuer
        paths: dict[str, Iterable[str]] = {PATH: tool_sets}
        paths |= {f"{PATH}/{name}": [name] for name in tool_sets}
        self._endpoints = [
            McpEndpoint(
                path, ToolServer(tools_of(names), store, options or Options(), version, keys).server
            )
            for path, names in paths.items()
        ]

    @property
    def routes(self) -> list[tuple[str, type[RequestHandler], Mapping[str, Any]]]:
        """The paths, with their handlers and the handlers' options."""
        routes: list[tuple[str, type[RequestHandler], Mapping[str, Any]]] = [
            (each.path, McpHandler, {"endpoint": each, "hosts": self._hosts})
            for each in self._endpoints
        ]
        if self._issuer is not None:
            paths = "|".join(each.path for each in self._endpoints)
            pattern = f"{re.escape(WELL_KNOWN)}({paths})?"
            routes.append((pattern, ResourceMetadata, {"issuer": self._issuer}))
        return routes

    def start(self, supervisor: Supervisor) -> None:
        """Serve in the background."""
        for each in self._endpoints:
            supervisor.start(f"MCP at {each.path}", each.run)
