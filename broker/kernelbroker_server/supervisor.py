"""Owns the broker's long-lived background tasks and restarts those that fail.

A task such as the pool's clock must not end at its first unexpected error: nothing would be launched,
swept or measured afterwards, and no caller would notice. The supervisor logs the error, waits, and starts
the task again. `status` tells `/health` which tasks fail.

Work that is done once (a launch, a removal) does not belong here.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses before the restarts after failures that follow one another."""
RECOVERED_AFTER_S = 60.0
"""A task that has run for so long since its last failure is healthy again."""


class TaskState(enum.Enum):
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    """It failed and waits for its restart."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """What `/health` shows of one background task.

    Attributes:
        failures: how often it failed in a row; 0 if it is healthy.
        last_error: the class and the message of the latest of these failures; None if it is healthy.
    """

    name: str
    state: TaskState
    failures: int
    last_error: str | None


class SupervisedTask:
    """A background task that is restarted when it fails. Made by `Supervisor.start`."""

    def __init__(
        self, name: str, run: Callable[[], Coroutine[Any, Any, None]], supervisor: Supervisor
    ) -> None:
        self.name = name
        self._run = run
        self._supervisor = supervisor
        self._state = TaskState.RUNNING
        self._failures = 0
        self._last_error = ""
        self._started_at = supervisor.clock()
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Cancel the task and wait for its end. Calling it again does no harm."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def done(self) -> bool:
        """Whether it has returned or was stopped."""
        return self._task is not None and self._task.done()

    def status(self) -> TaskStatus:
        failures = 0 if self._recovered() else self._failures
        return TaskStatus(
            self.name, self._state, failures, (self._last_error if failures else None)
        )

    def _begin(self, context: Context) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._keep_running(), name=self.name, context=context)
        return self._task

    async def _keep_running(self) -> None:
        while True:
            self._state = TaskState.RUNNING
            self._started_at = self._supervisor.clock()
            try:
                await self._run()
            except Exception as exc:
                if self._recovered():
                    self._failures = 0
                delay = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
                self._failures += 1
                self._last_error = f"{type(exc).__name__}: {exc}"
                self._state = TaskState.BACKING_OFF
                logger.exception(
                    "the background task %r failed and is restarted in %g s", self.name, delay
                )
            else:
                return
            await self._supervisor.sleep(delay)

    def _recovered(self) -> bool:
        """Whether the present run has lasted long enough to forget earlier failures."""
        lasted = self._supervisor.clock() - self._started_at
        return self._state is TaskState.RUNNING and lasted >= RECOVERED_AFTER_S


class Supervisor:
    """Starts background tasks, restarts those that fail, and stops them at the end.

    Args:
        clock: seconds of a monotonic clock.
        sleep: waits before a restart.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.clock = clock
        self.sleep = sleep
        self._tasks: set[SupervisedTask] = set()

    def start(
        self,
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        *,
        context: Context | None = None,
    ) -> SupervisedTask:
        """Run a task in the background until it returns or is stopped.

        Args:
            name: for logs and for `/health`; several tasks may share one.
            run: called for each start. It must be able to go on where a failure interrupted it.
            context: the task's context; an empty one, without the ids of the current request, if left out.
        """
        supervised = SupervisedTask(name, run, self)
        self._tasks.add(supervised)
        task = supervised._begin(Context() if context is None else context)
        task.add_done_callback(lambda _: self._tasks.discard(supervised))
        return supervised

    def status(self) -> list[TaskStatus]:
        """Return the status of all tasks that have not ended, by name."""
        tasks = (task.status() for task in self._tasks if not task.done)
        return sorted(tasks, key=lambda status: status.name)

    def failing(self) -> list[TaskStatus]:
        """Return the tasks that failed lately. If there are any, the broker is degraded."""
        return [status for status in self.status() if status.failures]

    async def stop(self) -> None:
        """Stop all tasks."""
        await asyncio.gather(*(task.stop() for task in list(self._tasks)))
