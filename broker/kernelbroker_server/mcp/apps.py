"""The page that shows results to a person: the extension `io.modelcontextprotocol/ui` (MCP Apps).

The host shows the page of `result.html` in a frame of its own, and passes it the results of the tools that
name it. Tools that only the page calls are listed only for clients that have declared the extension.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextResourceContents,
    Tool,
)

EXTENSION = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
PAGE = "ui://kernelbroker/result.html"

SHOWN_BY_PAGE: dict[str, Any] = {"ui": {"resourceUri": PAGE}}
"""The `_meta` of a tool whose results the page shows."""
FOR_PAGE_ONLY: dict[str, Any] = {"ui": {"resourceUri": PAGE, "visibility": ["app"]}}
"""The `_meta` of a tool that only the page calls."""


def is_listed(ctx: ServerRequestContext[Any, Any], tool: Tool) -> bool:
    """Whether the client gets to know of a tool."""
    if ((tool.meta or {}).get("ui") or {}).get("visibility") != ["app"]:
        return True
    capabilities = ctx.session.client_capabilities
    return EXTENSION in ((capabilities.extensions if capabilities else None) or {})


def add_page(server: Server[Any]) -> None:
    """Let a server serve the page."""
    html = files(__package__).joinpath("result.html").read_text("utf-8")
    meta: dict[str, Any] = {"ui": {"prefersBorder": True}}
    page = Resource(uri=PAGE, name="result", title="Result", mime_type=MIME_TYPE)

    async def list_(
        _ctx: ServerRequestContext[Any, Any], _params: PaginatedRequestParams
    ) -> ListResourcesResult:
        return ListResourcesResult(resources=[page])

    async def no_templates(
        _ctx: ServerRequestContext[Any, Any], _params: PaginatedRequestParams
    ) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=[])

    async def read(
        _ctx: ServerRequestContext[Any, Any], params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        if params.uri != PAGE:
            raise MCPError(INVALID_PARAMS, f"there is no resource {params.uri[:200]!r}")
        content = TextResourceContents(uri=PAGE, text=html, mime_type=MIME_TYPE, _meta=meta)
        return ReadResourceResult(contents=[content])

    server.extensions[EXTENSION] = {}
    server.add_request_handler("resources/list", PaginatedRequestParams, list_)
    # Clients ask every server for them that has resources.
    server.add_request_handler("resources/templates/list", PaginatedRequestParams, no_templates)
    server.add_request_handler("resources/read", ReadResourceRequestParams, read)
