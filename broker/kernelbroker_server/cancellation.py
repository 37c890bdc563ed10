"""Work that must be finished although its caller is cancelled.

With `asyncio.shield` alone the caller returns at once, and nothing waits for the work. A cancel scope of
anyio does not help either: its shield holds against anyio's own cancellation, not against `Task.cancel`,
which asyncio, Tornado and `asyncio.timeout` use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def run_to_completion(work: Awaitable[T]) -> T:
    """Await `work` to its end, also if the caller is cancelled, however often, while it runs.

    The work must end by itself: give it a deadline.

    Raises:
        asyncio.CancelledError: the caller was cancelled, and the work has ended. If it failed, its error is
            the cause.
        what the work raises, if the caller was not cancelled.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancellation = exc
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    return task.result()
