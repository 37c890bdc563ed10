"""A session's variables: their list, pages of tables, and whole tables of any size.

All are internal cells, which run in the session's order. A table's data comes over an HTTP request of
its own, not over the kernel's channel, and the broker does not parse it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kernelbroker.protocol.errors import BadRequest, Unavailable
from kernelbroker.protocol.events import DataFrame, Variable
from kernelbroker.protocol.messages import VariableList
from kernelbroker_kernel.contract import EXPORTS_PATH

from ..kernels.transfer import GatewayRequest, TransferFailed
from ..sessions.session import Session
from .executions import Executions
from .file_operations import file_operation
from .internal_cells import Answer, answered

Format: TypeAlias = Literal["arrow", "parquet", "csv", "json"]

_NAME_CHARS = 256


class _Answer(Answer):
    ready: bool = False
    variables: list[Variable] = []
    dropped: int = 0
    page: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """A table whose data has not been read yet.

    Attributes:
        size: of the data in bytes; None if unknown.
        body: read the data from its `chunks`.
    """

    size: int | None
    body: GatewayRequest


async def variables(executions: Executions, session: Session) -> VariableList:
    """List the newest variables of a session, oldest first.

    Raises:
        SessionGone: the session is closed.
        TooManyRequests: too many executions wait.
        Unavailable: the session was busy for too long, or its kernel did not answer.
    """
    limit = session.limits.output.max_variables
    asked = {"list": {"max_variables": limit}}
    async with answered(executions, session, asked, _Answer) as answer:
        return VariableList(variables=answer.variables[:limit], dropped=answer.dropped)


async def page(
    executions: Executions,
    session: Session,
    name: str,
    *,
    offset: int = 0,
    limit: int = 50,
    sort_by: str | None = None,
    descending: bool = False,
) -> DataFrame:
    """Return a table with `limit` rows from `offset` on as its preview.

    Args:
        limit: at most 500.
        sort_by: a column, by its key in the preview, in whose order the rows are counted.

    Raises:
        BadRequest: the name is not an identifier.
        NotFound: there is no such variable, or no such column.
        Conflict: it is not a table, or cannot be sorted.
        Other errors: as `variables`.
    """
    _check_name(name)
    asked = {"name": name, "offset": offset, "limit": limit}
    asked |= {"sort_by": sort_by, "descending": descending}
    async with answered(executions, session, {"page": asked}, _Answer) as answer:
        if answer.page is None:
            raise _invalid_answer()
        return answer.page


@contextlib.asynccontextmanager
async def export(
    executions: Executions,
    session: Session,
    name: str,
    format: Format,
    *,
    lossy: bool = False,
    offset: int = 0,
    limit: int | None = None,
) -> AsyncIterator[Export]:
    """Send a table, or `limit` of its rows from `offset` on, in the given format.

    Leaving the block early interrupts the kernel.

    With `lossy`, values that the format has no type for are changed, and the changes are listed in the
    metadata of the Arrow schema. Without it such a table is refused.

    Raises:
        BadRequest: the name is not an identifier.
        NotFound: there is no such variable.
        Conflict: it is not a table, or the format cannot hold it.
        Other errors: as `variables`.
    """
    _check_name(name)
    ticket = secrets.token_hex(16)
    rows = {"offset": offset, "limit": limit} if offset or limit is not None else {}
    asked = {"export": {"name": name, "format": format, "ticket": ticket, "lossy": lossy, **rows}}
    with file_operation(session, "export", name) as progress:
        async with answered(executions, session, asked, _Answer) as answer:
            if not answer.ready:
                raise _invalid_answer()
            async with (
                session.borrow() as gateway,
                await gateway.request("GET", f"{EXPORTS_PATH}/{ticket}") as exchange,
            ):
                await exchange.answer()
                if exchange.status != 200:
                    raise TransferFailed(f"the sandbox answered with status {exchange.status}")
                length = exchange.headers.get("content-length")
                try:
                    yield Export(None if length is None else int(length), exchange)
                finally:
                    progress.size = exchange.received


def _check_name(name: str) -> None:
    if not name.isidentifier() or len(name) > _NAME_CHARS:
        raise BadRequest("a variable's name must be a Python identifier")


def _invalid_answer() -> Unavailable:
    return Unavailable("the kernel sent an invalid answer; restart the session")
