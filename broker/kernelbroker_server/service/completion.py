"""Completes code in a session, for editors. It never makes anybody wait."""

from __future__ import annotations

import msgspec
from kernelbroker.protocol.errors import Conflict

from ..sessions.session import Session
from .executions import Executions
from .internal_cells import Answer, answered


class Completed(msgspec.Struct, kw_only=True, frozen=True):
    """`matches` may replace the code from `cursor_start` to `cursor_end`, in characters."""

    matches: list[str] = []
    cursor_start: int = 0
    cursor_end: int = 0


class _Answer(Answer):
    completed: Completed = Completed()


async def complete(
    executions: Executions, session: Session, code: str, cursor_pos: int
) -> Completed:
    """Return what may follow at a place in Python code.

    Args:
        cursor_pos: in characters from the beginning of the code.

    Raises:
        BadRequest: the code is too long.
        Conflict: the session runs a cell, or sleeps.
        SessionGone, TooManyRequests, Unavailable
    """
    session.limits.check_code(code)
    session.expect_open()
    # A cell with a result, or a completion before this one, takes a moment more to end, and is waited for.
    is_busy = any(each.result is None for each in session.executions.values())
    if is_busy or session.state == "asleep":
        state = "busy" if is_busy else session.state
        raise Conflict(f"the session is {state}; it completes code while it is idle")
    asked = {"complete": {"code": code, "cursor_pos": cursor_pos}}
    async with answered(executions, session, asked, _Answer) as answer:
        return answer.completed
