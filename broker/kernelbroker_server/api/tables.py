"""A session's variables over HTTP. Tables are streamed.

A table is an attachment of a fixed type, so that no browser renders it under the broker's origin.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, get_args

import msgspec
from kernelbroker.protocol.errors import BadRequest, RequestError
from kernelbroker.protocol.messages import VariableList

from ..kernels.transfer import TransferFailed
from ..service import completion, tables
from .base import ApiHandler
from .disconnect import Disconnectable
from .download import Downloading
from .openapi import Content, operation

logger = logging.getLogger(__name__)

_Rows = Annotated[int, msgspec.Meta(ge=0)]

_TYPES: dict[str, str] = {
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
}


class Variables(Disconnectable, ApiHandler):
    @operation({200: VariableList})
    async def get(self, session_id: str) -> None:
        """List the session's variables, after the cells that were queued before."""
        session = await self.tenant.sessions.resolve(session_id)
        async with self.until_disconnected():
            self.reply(await tables.variables(self.tenant.executions, session))


class CompletionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Code and a place in it, in characters from its beginning."""

    code: str
    cursor_pos: Annotated[int, msgspec.Meta(ge=0)]


class Complete(Disconnectable, ApiHandler):
    @operation({200: completion.Completed}, body=CompletionRequest)
    async def post(self, session_id: str) -> None:
        """Complete Python code with what the kernel knows. 409 while a cell runs."""
        body = self.body_as(CompletionRequest)
        session = await self.tenant.sessions.resolve(session_id)
        async with self.until_disconnected():
            self.reply(
                await completion.complete(
                    self.tenant.executions, session, body.code, body.cursor_pos
                )
            )


class OneVariable(Downloading, ApiHandler):
    @operation(
        {200: Content({kind.partition(";")[0]: str for kind in _TYPES.values()})},
        query={"format": tables.Format, "lossy": bool, "offset": _Rows, "limit": _Rows},
    )
    async def get(self, session_id: str, name: str) -> None:
        """Download a table in one of several formats, after the cells that were queued before.

        With `lossy=true`, values that the format has no type for are changed instead of refused. The
        metadata of an Arrow or Parquet file lists the changes. With `offset` and `limit`, only these rows
        are sent.
        """
        session = await self.tenant.sessions.resolve(session_id)
        format_: Any = self.get_query_argument("format", "arrow")
        if format_ not in get_args(tables.Format):
            raise BadRequest(f"format must be one of {', '.join(get_args(tables.Format))}")
        lossy = self.get_query_argument("lossy", "false")
        if lossy not in ("true", "false"):
            raise BadRequest("lossy must be true or false")
        offset, limit = self._rows("offset"), self._rows("limit")
        try:
            async with (
                self.until_disconnected(),
                tables.export(
                    self.tenant.executions,
                    session,
                    name,
                    format_,
                    lossy=lossy == "true",
                    offset=offset or 0,
                    limit=limit,
                ) as export,
            ):
                await self.send(export.body, _TYPES[format_], export.size)
        except (RequestError, TransferFailed, TimeoutError) as exc:
            if not self._headers_written:
                raise
            # The headers are sent, so the client learns of it from a body that is too short.
            logger.info("the download of a table broke off: %s", exc)
            self.hang_up()

    def _rows(self, name: str) -> int | None:
        """Return a number of rows from the query; None if it is absent. Raises BadRequest."""
        value = self.get_query_argument(name, None)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) <= 15):
            raise BadRequest(f"{name} must be a whole number of rows")
        return int(value)
