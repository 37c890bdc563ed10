"""The MCP server: lists the tools, calls them, and reports their errors.

It serves the revision 2026-07-28 and the older ones at one address. It keeps nothing in memory: sessions
are named in the arguments, and what a client echoes is sealed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kernelbroker.protocol.errors import RequestError
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    EmptyResult,
    ListToolsResult,
    PaginatedRequestParams,
    SetLevelRequestParams,
)
from pydantic import ValidationError

from ..kernels.transfer import TransferFailed
from ..sessions.store import EventStore
from .analysis_tools import replay
from .answers import failure
from .apps import add_page, is_listed
from .call import Call, Options, memory_of, tenant_of
from .tasks import add_tasks
from .tool import ToolResult, ToolSpec

logger = logging.getLogger(__name__)

NAME = "kernelbroker"
_CACHED: tuple[CacheableMethod, ...] = (
    "tools/list",
    "server/discover",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
_LIST_TTL_MS = 300_000
"""How long a client may cache lists, which change only with the broker's settings."""
_INSTRUCTIONS = """\
Runs code in isolated sandboxes. A session keeps variables and files between calls. Each result names its
session_id: pass it to the next call to go on with the same variables; leave it out to start afresh. Files
are below /data. Look at tables with get_table instead of printing them."""


class ToolServer:
    """Makes the SDK's server for some tools.

    Args:
        tools: the tools, in the order of their list.
        store: keeps what is remembered for connections of older revisions.
        keys: seal what clients echo; the first one seals, all unseal.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        store: EventStore,
        options: Options,
        version: str,
        keys: Sequence[bytes],
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._definitions = [tool.definition for tool in tools]
        self._store = store
        self._options = options
        hint = CacheHint(_LIST_TTL_MS, "private")
        schemas = {each.name: each.input_schema for each in self._definitions}
        self.server: Server[Any] = Server(
            NAME,
            version=version,
            title="kernelbroker",
            instructions=_INSTRUCTIONS,
            cache_hints=dict.fromkeys(_CACHED, hint),
            get_tool_input_schema=schemas.get,
            on_list_tools=self._list,
            on_call_tool=self._call,  # type: ignore[arg-type]  # a task's handle is a dict
        )
        self.server.add_request_handler(
            "logging/setLevel", SetLevelRequestParams, self._set_log_level
        )
        add_page(self.server)
        add_tasks(self.server, store, options, replay)
        security = RequestStateSecurity(
            keys=list(keys), bind_principal=lambda ctx: tenant_of(ctx).name
        )
        self.server.middleware.append(RequestStateBoundary(security, default_audience=NAME))

    async def _list(
        self, ctx: ServerRequestContext[Any, Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[each for each in self._definitions if is_listed(ctx, each)])

    async def _call(
        self, ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> ToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:100]!r}")
        call = Call(ctx, params, self._store, self._options)
        try:
            arguments = tool.arguments.model_validate(params.arguments or {})
            return await tool.run(call, arguments)
        except ValidationError as exc:
            return failure(_misfits(exc), "bad_request", call.session_id)
        except RequestError as exc:
            return failure(exc.message, exc.code, call.session_id, retry_after=exc.retry_after)
        except TransferFailed as exc:
            return failure(f"{exc}; try again", "unavailable", call.session_id)
        except MCPError:
            raise
        except Exception:
            logger.exception("the tool %s failed", tool.name)
            message = "internal error; the broker's log has the details"
            return failure(message, "internal_error", call.session_id)

    async def _set_log_level(
        self, ctx: ServerRequestContext[Any, Any], params: SetLevelRequestParams
    ) -> EmptyResult:
        memory_of(ctx, self._store).set("log_level", params.level)
        return EmptyResult()


def _misfits(error: ValidationError) -> str:
    """Which arguments are wrong, and how."""
    lines = [
        f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False)[:10]
    ]
    return "the arguments are invalid: " + "; ".join(lines)
