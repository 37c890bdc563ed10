"""A session's variables: their list, pages of tables, and whole tables of any size.

All are internal cells, which run in the session's order. A table's data comes over an HTTP request of
its own, not over the kernel's channel, and the broker does not parse it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    RequestError,
    SessionGone,
    Unavailable,
)
from kernelbroker.protocol.events import DataFrame, Variable
from kernelbroker.protocol.messages import VariableList
from kernelbroker_kernel.contract import EXPORTS_PATH, INTERNAL_CELL_CODE

from ..kernels.requests import InternalCell
from ..kernels.transfer import GatewayRequest, TransferFailed
from ..sessions.execution import Execution
from ..sessions.session import Session
from .executions import Executions
from .file_operations import file_operation

Format: TypeAlias = Literal["arrow", "parquet", "csv", "json"]

_NAME_CHARS = 256
_REFUSAL_CHARS = 1000
_REFUSALS: dict[str, type[RequestError]] = {
    cls.code: cls for cls in (BadRequest, NotFound, Conflict)
}


class _Refusal(msgspec.Struct):
    code: str
    message: str


class _Answer(msgspec.Struct):
    ready: bool = False
    refused: _Refusal | None = None
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
    async with _answered(executions, session, {"list": {"max_variables": limit}}) as answer:
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
    async with _answered(executions, session, {"page": asked}) as answer:
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
) -> AsyncIterator[Export]:
    """Send a table in the given format. Leaving the block early interrupts the kernel.

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
    asked = {"export": {"name": name, "format": format, "ticket": ticket, "lossy": lossy}}
    with file_operation(session, "export", name) as progress:
        async with _answered(executions, session, asked) as answer:
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


@contextlib.asynccontextmanager
async def _answered(
    executions: Executions, session: Session, asked: dict[str, Any]
) -> AsyncIterator[_Answer]:
    """Run an internal cell: it has answered when the block begins, and ends with the block."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_answer(payload: Any) -> None:
        if not answered.done():
            answered.set_result(payload)

    cell = InternalCell(INTERNAL_CELL_CODE, asked, on_answer=on_answer)
    execution = executions.run_internal_cell(session, cell)
    try:
        try:
            async with asyncio.timeout(session.acquire_timeout):
                await execution.begun.wait()
        except TimeoutError:
            raise Unavailable(
                f"the session was busy for {session.acquire_timeout:g} s; "
                "try again when its cells have ended",
                retry_after=1,
            ) from None
        await asyncio.wait([answered, execution.done], return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            raise _failure(session, execution)
        try:
            answer = msgspec.convert(answered.result(), _Answer)
        except (msgspec.ValidationError, UnicodeError):
            answer = _Answer()
        if answer.refused is None:
            yield answer
    except BaseException:
        session.withdraw(execution)
        raise
    if answer.refused is not None:
        error = _REFUSALS.get(answer.refused.code, Conflict)
        raise error(answer.refused.message[:_REFUSAL_CHARS])


def _check_name(name: str) -> None:
    if not name.isidentifier() or len(name) > _NAME_CHARS:
        raise BadRequest("a variable's name must be a Python identifier")


def _invalid_answer() -> Unavailable:
    return Unavailable("the kernel sent an invalid answer; restart the session")


def _failure(session: Session, execution: Execution) -> RequestError:
    result = execution.log.result
    detail = result.error_detail if result is not None else None
    if session.closed_reason is not None:
        return SessionGone(f"session {session.id} is closed: {session.closed_reason}")
    if detail is not None and detail.cause == "interrupted":
        return Conflict("it was interrupted; ask again")
    reason = (result.error if result is not None else None) or "the kernel did not answer"
    return Unavailable(f"{reason[:_REFUSAL_CHARS]}; try again", retry_after=1)
