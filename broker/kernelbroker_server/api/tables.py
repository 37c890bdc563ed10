"""A session's variables over HTTP; tables are streamed.

Like a file, a table is an attachment of a fixed type: no browser shows it under the broker's address.
"""

from __future__ import annotations

import logging
from typing import Any, get_args

from kernelbroker.protocol.errors import BadRequest, RequestError
from kernelbroker.protocol.messages import VariableList

from ..kernels.transfer import TransferFailed
from ..sessions import tables
from .base import ApiHandler
from .contract import Content, operation
from .disconnect import Disconnectable
from .download import Downloading

logger = logging.getLogger(__name__)

_SILENCE_S = 60.0
"""How long a client may take nothing of a table."""
_TYPES: dict[str, str] = {
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
}


class Variables(Disconnectable, ApiHandler):
    @operation({200: VariableList})
    async def get(self, session_id: str) -> None:
        """List the variables that the session holds, when the cells before have ended."""
        session = self.registry.get(session_id)
        async with self.until_disconnected():
            self.reply(await tables.variables(session))


class OneVariable(Downloading, ApiHandler):
    @operation(
        {200: Content({kind.partition(";")[0]: str for kind in _TYPES.values()})},
        query={"format": tables.Format},
    )
    async def get(self, session_id: str, name: str) -> None:
        """Download a table, when the cells before have ended: as an Arrow stream, or another format."""
        session = self.registry.get(session_id)
        format_: Any = self.get_query_argument("format", "arrow")
        if format_ not in get_args(tables.Format):
            raise BadRequest(f"format is one of {', '.join(get_args(tables.Format))}")
        try:
            async with (
                self.until_disconnected(),
                tables.export(session, name, format_) as export,
            ):
                await self.send(export.body, _TYPES[format_], export.size)
        except (RequestError, TransferFailed, TimeoutError) as exc:
            if not self._headers_written:
                raise
            # There is no other way to say so any more: the client sees that less came than announced.
            logger.info("%s a table broke off: %s", self.request_id, exc)
            self.hang_up()
