"""An event store that outlives the broker.

Open sessions and their executions are in memory, as in `memory_store.py`. Each change is in the journal
before anybody sees it, so `kill -9` of the broker loses nothing that a client has seen. A thread copies the
journal into a database, which answers for sessions that have ended, also after a restart.

If the disk is full, executions go on, and what was not stored waits in memory until there is room. What a
broker could not store until its end is missing after a restart, and says so.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from ..kept_aside import kept_aside
from .archive import Archive
from .backlog import Backlog
from .durable_log import DurableLog
from .journal import Journal
from .recorded_store import RecordedStore
from .records import Record
from .state_directory import StateDirectory
from .store_thread import StoreThread
from .superseded import end_superseded

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Open:
    """The parts of an open store."""

    directory: StateDirectory
    archive: Archive
    journal: Journal
    backlog: Backlog
    thread: StoreThread


class DurableStore(RecordedStore):
    """An event store in a directory, which one broker has at a time.

    Args:
        path: the directory; made if it does not exist.
        retention: seconds for which the executions of ended sessions are kept.
        max_history: bytes of all stored executions; the ones that ended first are removed. 0 for no limit.
        clock: seconds since the epoch.
        on_superseded: called with the directory when another broker has taken it. Nothing is written then.
    """

    def __init__(
        self,
        path: Path,
        retention: float = 86400.0,
        max_history: int = 0,
        clock: Callable[[], float] = time.time,
        on_superseded: Callable[[Path], None] = end_superseded,
    ) -> None:
        super().__init__(retention, max_history, clock)
        self._path = path
        self._on_superseded = on_superseded
        self._open: _Open | None = None

    # Opening and closing.

    async def start(self) -> None:
        """Lock the directory, and take over what an earlier broker has left in it.

        Raises:
            InUse: another broker has the directory.
            OSError: it cannot be used.
        """
        directory = StateDirectory(self._path)
        try:
            archive = Archive(directory, self._retention, self._max_history, self._clock)
            directory.raise_epoch()
        except sqlite3.Error as exc:
            directory.release()
            raise OSError(None, f"{directory.database}: {exc}") from exc
        except BaseException:
            directory.release()
            raise
        for entry in archive.entries():
            super().put_entry(entry)
        self._next_number = archive.last_number + 1
        journal = Journal(directory.path, archive.serial + 1)
        thread = StoreThread(partial(archive.copy, journal), archive.tidy)
        self._open = _Open(directory, archive, journal, Backlog(journal), thread)

    async def stop(self) -> None:
        if (opened := self._open) is None:
            return
        self._open = None
        opened.backlog.flush()
        try:
            await opened.thread.stop()
            opened.journal.close()
            opened.archive.close(opened.journal, complete=opened.thread.problem is None)
        finally:
            opened.directory.release()

    async def copy_to(self, path: Path) -> None:
        """Copy the database, with everything stored before. Raises Unavailable."""
        await self._query(lambda archive: archive.copy_to(path))

    def problems(self) -> Sequence[str]:
        found = [
            f"{path}: kept aside, since it could not be used; move or delete it"
            for path in kept_aside(self._path)
        ]
        opened = self._open
        error = None if opened is None else opened.backlog.failure or opened.thread.problem
        if error is not None:
            found.append(f"state_dir: new results are not stored: {error}")
        return found if opened is None else found + opened.archive.problems()

    # Changes, on the event loop.

    def _new_log(
        self,
        number: int,
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str],
        findings: Sequence[Finding],
        *,
        allow_stdin: bool,
    ) -> DurableLog:
        return DurableLog(
            number,
            self._record,
            self._is_behind,
            execution_id,
            request,
            packages,
            findings,
            allow_stdin=allow_stdin,
        )

    def _record(self, record: Record) -> bool:
        """Append to the journal. Returns whether it is stored, or will be when there is room."""
        if (opened := self._open) is None or not self._expect_newest(opened):
            return False
        had_failed = opened.backlog.failure is not None
        is_kept = opened.backlog.append(record)
        if (failure := opened.backlog.failure) is None:
            opened.thread.wake()
        elif not had_failed:
            logger.error("%s: results are not stored: %s", self._path, failure)
        return is_kept

    def _is_behind(self) -> bool:
        """Whether the journal has not taken all records."""
        return self._open is None or self._open.backlog.waiting > 0

    def expect_newest(self) -> None:
        opened = self._open
        if opened is not None and self._expect_newest(opened) and opened.backlog.failure:
            opened.backlog.flush()
            opened.thread.wake()

    def _expect_newest(self, opened: _Open) -> bool:
        if is_newest := opened.directory.is_newest:
            return is_newest
        self._on_superseded(self._path)
        return False

    async def _query(self, query: Callable[[Archive], T]) -> T:
        """Ask the archive, in its thread. Raises Unavailable."""
        if (opened := self._open) is None:
            raise Unavailable("the broker is shutting down", retry_after=10)
        try:
            return await opened.thread.run(partial(query, opened.archive))
        except sqlite3.Error as exc:
            logger.exception("the stored results cannot be read")
            raise Unavailable(f"the stored results cannot be read: {exc}") from exc
