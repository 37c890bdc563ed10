"""The task that acquires a session's sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from kernelbroker.protocol.errors import InternalError, RequestError, Unavailable

logger = logging.getLogger(__name__)


class Acquisition:
    """Runs one acquisition at a time.

    Args:
        context: that of its log records.
        report: called when an acquisition has ended: with the error, or with None if there is a sandbox.
    """

    def __init__(
        self, session_id: str, context: Context, report: Callable[[RequestError | None], None]
    ) -> None:
        self._id = session_id
        self._context = context
        self._report = report
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Begin. A callback reports the outcome, since a cancelled task may never begin."""

        async def acquire() -> None:
            await work

        def ended(task: asyncio.Task[None]) -> None:
            work.close()
            self._task = None
            self._report(self._error_of(task))

        name, context = f"session {self._id} sandbox", self._context.copy()
        self._task = asyncio.create_task(acquire(), name=name, context=context)
        self._task.add_done_callback(ended)

    def cancel(self) -> None:
        """Give up the acquisition that runs."""
        assert self._task is not None, "an acquisition runs"
        self._task.cancel()

    def _error_of(self, task: asyncio.Task[None]) -> RequestError | None:
        if task.cancelled():
            return Unavailable("the session was closed")
        error = task.exception()
        if error is None or isinstance(error, RequestError):
            return error
        logger.error("session %s: no sandbox", self._id, exc_info=error)
        return InternalError("a fault of the broker; its log says more")
