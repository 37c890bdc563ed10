"""The thread that owns the database: it copies the journal, in groups, and answers queries in between."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

_GROUP_S = 0.1
"""The thread waits for so long after the first record, and commits all that have come."""
_RETRY_S = 2.0
_TIDY_S = 30.0

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "concurrent.futures.Future[Any]"]


class StoreThread:
    """Runs until `stop`.

    Args:
        copy: copies all records of the journal into the database.
        tidy: removes what is too old; called now and then. Returns whether there is more to do.
        group: seconds to wait after the first record, so that one commit has all that come.

    Attributes:
        problem: the error of the latest `copy` or `tidy`; None if they succeed.
    """

    def __init__(
        self, copy: Callable[[], None], tidy: Callable[[], bool], group: float = _GROUP_S
    ) -> None:
        self.problem: Exception | None = None
        self._copy = copy
        self._tidy = tidy
        self._group = group
        self._tidied = 0.0
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._work = threading.Event()
        self._urgent = threading.Event()
        self._stopping = False
        # The process may end without `stop`: the journal has everything.
        self._thread = threading.Thread(target=self._run, name="event store", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Report a new record."""
        if not self._work.is_set():
            self._work.set()

    async def run(self, job: Callable[[], T]) -> T:
        """Run a query after the records that came before it are in the database. Raises its errors."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._jobs.put((job, done))
        self._urgent.set()
        self._work.set()
        return await asyncio.wrap_future(done)

    async def stop(self) -> None:
        """End the thread after it has copied everything that it can."""
        self._stopping = True
        self._urgent.set()
        self._work.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while not self._stopping:
            self._work.wait(_TIDY_S)
            self._urgent.wait(self._group)
            self._turn()
        self._turn()

    def _turn(self) -> None:
        self._work.clear()
        self._urgent.clear()
        jobs = []
        while not self._jobs.empty():  # before the copy: they see the records that came before them
            jobs.append(self._jobs.get())
        try:
            self._copy()
            if time.monotonic() >= self._tidied + _TIDY_S:
                if self._tidy():
                    self._work.set()
                else:
                    self._tidied = time.monotonic()
            self.problem = None
        except Exception as exc:
            if self.problem is None:
                logger.exception("the event store cannot write its database; it tries again")
            self.problem = exc
        for job, done in jobs:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(job())
                except BaseException as exc:
                    done.set_exception(exc)
        if self.problem is not None and not self._stopping:
            self._urgent.wait(_RETRY_S)
            self._work.set()
