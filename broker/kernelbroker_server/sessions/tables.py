"""A session's variables: what there is, and tables of any size, as its kernel sends them.

Both are errands, which run in the session's order, like cells. A table's data comes beside the channel,
by a request of its own; nothing that comes is looked at.
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
from kernelbroker.protocol.events import Variable
from kernelbroker.protocol.messages import VariableList
from kernelbroker_kernel.contract import ERRAND_CODE, EXPORTS_PATH

from ..kernels.requests import Errand
from ..kernels.transfer import Exchange, TransferFailed
from .execution import Execution
from .session import Session

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


@dataclass(frozen=True, slots=True)
class Export:
    """
    Attributes:
        size: bytes that follow; None where that is not known.
        body: whose answer they are.
    """

    size: int | None
    body: Exchange


async def variables(session: Session) -> VariableList:
    """The newest of the session's variables, oldest first.

    Raises:
        SessionGone, TooManyRequests, Unavailable: there was no turn to be had, for one.
    """
    limit = session.limits.output.max_variables
    async with _answered(session, {"list": {"max_variables": limit}}) as answer:
        return VariableList(variables=answer.variables[:limit], dropped=answer.dropped)


@contextlib.asynccontextmanager
async def export(session: Session, name: str, format: Format) -> AsyncIterator[Export]:
    """A table, streamed in this format. Leaving early interrupts it.

    Raises:
        BadRequest: the name is none.
        NotFound, Conflict: there is no such variable, or it is no table, or none for the format.
        as `variables`.
    """
    if not name.isidentifier() or len(name) > _NAME_CHARS:
        raise BadRequest("a variable's name is a Python identifier")
    ticket = secrets.token_hex(16)
    asked = {"export": {"name": name, "format": format, "ticket": ticket}}
    async with _answered(session, asked) as answer:
        if not answer.ready:
            raise Unavailable("the kernel did not answer as it should; restart the session")
        async with (
            session.visit() as client,
            await client.request("GET", f"{EXPORTS_PATH}/{ticket}") as exchange,
        ):
            await exchange.answer()
            if exchange.status != 200:
                raise TransferFailed(f"the sandbox answered with status {exchange.status}")
            length = exchange.headers.get("content-length")
            yield Export(None if length is None else int(length), exchange)


@contextlib.asynccontextmanager
async def _answered(session: Session, asked: dict[str, Any]) -> AsyncIterator[_Answer]:
    """Run an errand, which has answered when the block begins, and is over when the block has ended."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_answer(payload: Any) -> None:
        if not answered.done():
            answered.set_result(payload)

    execution = session.run_errand(Errand(ERRAND_CODE, asked, on_answer=on_answer))
    try:
        try:
            async with asyncio.timeout(session.patience):
                await execution.begun.wait()
        except TimeoutError:
            raise Unavailable(
                f"the session was busy for {session.patience:g} s; try again when its cells have ended",
                retry_after=1,
            ) from None
        ended = asyncio.ensure_future(_ended(execution))
        try:
            await asyncio.wait([answered, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
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


async def _ended(execution: Execution) -> None:
    async for _ in execution.journal.follow():
        pass


def _failure(session: Session, execution: Execution) -> RequestError:
    result = execution.journal.result
    detail = result.error_detail if result is not None else None
    if session.closed_reason is not None:
        return SessionGone(f"session {session.id} is closed: {session.closed_reason}")
    if detail is not None and detail.cause == "interrupted":
        return Conflict("it was interrupted; ask again")
    reason = (result.error if result is not None else None) or "the kernel did not answer"
    return Unavailable(f"{reason[:_REFUSAL_CHARS]}; try again", retry_after=1)
