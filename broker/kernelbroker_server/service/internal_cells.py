"""Runs internal cells in the order of a session, and receives their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    RequestError,
    SessionGone,
    TooLarge,
    Unavailable,
)
from kernelbroker_kernel.contract import INTERNAL_CELL_CODE

from ..kernels.requests import InternalCell
from ..sessions.execution import Execution
from ..sessions.session import Session
from .executions import Executions

_REFUSAL_CHARS = 1000
_REFUSALS: dict[str, type[RequestError]] = {
    cls.code: cls for cls in (BadRequest, NotFound, Conflict, TooLarge)
}


class Refusal(msgspec.Struct):
    code: str
    message: str


class Answer(msgspec.Struct):
    """The answer to an internal cell. Each kind of cell has a subclass."""

    refused: Refusal | None = None


A = TypeVar("A", bound=Answer)


@contextlib.asynccontextmanager
async def answered(
    executions: Executions, session: Session, asked: dict[str, Any], type_: type[A]
) -> AsyncIterator[A]:
    """Run an internal cell: it has answered when the block begins, and ends with the block.

    An answer of another shape is the default answer. Leaving the block early interrupts the kernel.

    Raises:
        SessionGone: the session is closed.
        TooManyRequests: too many executions wait.
        Unavailable: the session was busy for too long, or its kernel did not answer.
        BadRequest, NotFound, Conflict, TooLarge: the sandbox refused.
    """
    arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_answer(payload: Any) -> None:
        if not arrived.done():
            arrived.set_result(payload)

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
        await asyncio.wait([arrived, execution.done], return_when=asyncio.FIRST_COMPLETED)
        if not arrived.done():
            raise _failure(session, execution)
        try:
            answer = msgspec.convert(arrived.result(), type_)
        except (msgspec.ValidationError, UnicodeError):
            answer = type_()
        if answer.refused is None:
            yield answer
    except BaseException:
        session.withdraw(execution)
        raise
    if answer.refused is not None:
        error = _REFUSALS.get(answer.refused.code, Conflict)
        raise error(answer.refused.message[:_REFUSAL_CHARS])


def _failure(session: Session, execution: Execution) -> RequestError:
    result = execution.log.result
    detail = result.error_detail if result is not None else None
    if session.closed_reason is not None:
        return SessionGone(f"session {session.id} is closed: {session.closed_reason}")
    if detail is not None and detail.cause == "interrupted":
        return Conflict("it was interrupted; ask again")
    reason = (result.error if result is not None else None) or "the kernel did not answer"
    return Unavailable(f"{reason[:_REFUSAL_CHARS]}; try again", retry_after=1)
