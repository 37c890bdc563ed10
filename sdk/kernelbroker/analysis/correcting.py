"""The loop that runs code, and has a model correct it when it fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from .cells import Ran

History: TypeAlias = list[dict[str, str]]
"""The attempts that failed, oldest first: `code` and `error`."""

MAX_CORRECTIONS = 3


async def run_corrected(
    code: str,
    run: Callable[[str], Awaitable[Ran]],
    correct: Callable[[History], Awaitable[str | None]],
    history: History,
    max_corrections: int = MAX_CORRECTIONS,
) -> Ran:
    """Run code until it succeeds, with so many corrections after the first attempt.

    Args:
        correct: returns the corrected code, or None to give up.
        history: failed attempts are added.
    """
    for corrections_left in range(max_corrections, -1, -1):
        ran = await run(code)
        if ran.error is None:
            break
        history.append({"code": code, "error": ran.error})
        corrected = await correct(history) if corrections_left else None
        if corrected is None:
            break
        code = corrected
    return ran
