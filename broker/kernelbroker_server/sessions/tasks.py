"""The background tasks of one session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

logger = logging.getLogger(__name__)


class SessionTasks:
    """Starts tasks in the session's context, and logs the errors of those that fail."""

    def __init__(self, session_id: str, context: Context) -> None:
        self._id = session_id
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        name, context = f"session {self._id} {name}", self._context.copy()
        task = asyncio.create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the task %r failed", task.get_name(), exc_info=error)
