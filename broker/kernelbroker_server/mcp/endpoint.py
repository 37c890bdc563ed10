"""One address of the MCP server: the SDK's server and its transport, started with the broker."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from kernelbroker.protocol.errors import Unavailable
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from .asgi import Application

TENANT_KEY = "kernelbroker.tenant"
USER_KEY = "kernelbroker.user"
"""In the scope of a request: the `TenantService` of the token's tenant."""
_MAX_CONNECTIONS = 1_000
"""Open connections of clients that speak a revision before 2026-07-28. Later ones have none."""
_CONNECTION_IDLE_S = 1800.0


class McpEndpoint:
    """Serves requests while `run` runs.

    Args:
        path: for messages, such as `/mcp`.
    """

    def __init__(self, path: str, server: Server[Any]) -> None:
        self.path = path
        self._server = server
        self._manager: StreamableHTTPSessionManager | None = None

    async def run(self) -> None:
        """Serve until cancelled. Run under the supervisor."""
        manager = StreamableHTTPSessionManager(
            self._server, max_sessions=_MAX_CONNECTIONS, session_idle_timeout=_CONNECTION_IDLE_S
        )
        async with manager.run():
            self._manager = manager
            try:
                await asyncio.Event().wait()
            finally:
                self._manager = None

    @property
    def application(self) -> Application:
        """The ASGI application. Raises Unavailable if the endpoint does not run."""
        if self._manager is None:
            raise Unavailable("the MCP server is starting or stopping", retry_after=1)
        return self._application

    async def _application(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        assert self._manager is not None
        await self._manager.handle_request(scope, receive, send)
