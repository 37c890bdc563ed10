"""The SQLite database of the durable store. One thread uses it. Everything here blocks.

A commit is a write to SQLite's own log (`journal_mode = WAL`, `synchronous = NORMAL`), not a flush to the
disk: a power cut never damages the file, but the latest commits may be missing after one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from .changes import changes
from .queries import Queries, Row
from .records import Record
from .schema import MIGRATIONS, Migration, migrate

_DELETED_AT_ONCE = 200
"""Executions that one transaction deletes, so that other work does not wait for long."""
_FREED_PAGES = 2000
"""Pages of 4 KiB that are given back to the file system at once."""


class Database(Queries):
    """An open database.

    Raises, in all methods:
        sqlite3.Error: the file is damaged, or the disk is full.
    """

    def __init__(self, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Open or create the file, and bring it to the present version.

        Raises:
            NewerVersion
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # The thread that opens it need not be the one that uses it afterwards.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        super().__init__(connection)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # no file of shared memory
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            migrate(connection, migrations)
            if self._state("in_use"):
                ((found,),) = self._query("PRAGMA quick_check(1)")
                if found != "ok":
                    raise sqlite3.DatabaseError(found)
            connection.execute("UPDATE state SET value = 1 WHERE name = 'in_use'")
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the file after all changes are flushed to the disk."""
        try:
            self._connection.execute("UPDATE state SET value = 0 WHERE name = 'in_use'")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._connection.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def copy_to(self, path: Path) -> None:
        """Write a copy of the file as it is now, which can be used without it."""
        with contextlib.closing(sqlite3.connect(path)) as target:
            self._connection.backup(target)

    @property
    def applied(self) -> int:
        """The serial number of the latest record that was applied."""
        return self._state("applied")

    @property
    def last_number(self) -> int:
        """The highest number of an execution."""
        ((number,),) = self._query("SELECT coalesce(max(number), 0) FROM executions")
        return int(number)

    def _state(self, name: str) -> int:
        ((value,),) = self._query("SELECT value FROM state WHERE name = ?", name)
        return int(value)

    # Changes.

    def apply(self, records: Sequence[Record], serial: int) -> None:
        """Store records in one transaction.

        Args:
            serial: the serial number of the last one.
        """
        with self._transaction() as execute_many:
            for statement, rows in changes(records):
                execute_many(statement, rows)
            execute_many("UPDATE state SET value = ? WHERE name = 'applied'", [(serial,)])

    def end_lost(
        self,
        results: Sequence[tuple[int, int, bytes]],
        reason: str,
        at: float,
        adopted: Collection[str] = (),
    ) -> None:
        """End all sessions that were not adopted, and executions of `unended`.

        Args:
            results: for each such execution: its number, the `seq` of its result, and the result as JSON.
        """
        with self._transaction() as execute_many:
            execute_many("INSERT INTO events VALUES (?, ?, ?)", results)
            execute_many(
                "UPDATE executions SET ended_at = ?, size = size + ? WHERE number = ?",
                [(at, len(json), number) for number, _, json in results],
            )
            execute_many(
                "UPDATE sessions SET ended_at = ?, reason = ? WHERE key = ?",
                [(at, reason, key) for key, *_ in self.open_sessions() if key not in adopted],
            )

    def repair(self) -> None:
        """Make the content consistent after records were lost.

        What belongs to a lost session or execution is removed. An execution ends before the first event
        that it lacks, and has no result.
        """
        late = """SELECT number, seq FROM (
            SELECT number, seq, row_number() OVER (PARTITION BY number ORDER BY seq) AS place FROM events
        ) WHERE seq > place"""
        with self._transaction():
            for statement in (
                "DELETE FROM executions WHERE session_key NOT IN (SELECT key FROM sessions)",
                "DELETE FROM session_events WHERE session_key NOT IN (SELECT key FROM sessions)",
                "DELETE FROM events WHERE number NOT IN (SELECT number FROM executions)",
                f"""UPDATE executions SET ended_at = NULL
                WHERE number IN (SELECT number FROM ({late}))""",
                f"DELETE FROM events WHERE (number, seq) IN ({late})",
            ):
                self._connection.execute(statement)

    def expire(self, horizon: float, max_bytes: int, now: float) -> bool:
        """Remove some of what is too old, or too much.

        Args:
            horizon: sessions that ended before it are removed with their executions.
            max_bytes: of all executions; the ones that ended first are removed. 0 for no limit.

        Returns:
            Whether there may be more to remove.
        """
        old = self._query(
            """SELECT number, size FROM executions WHERE session_key IN
            (SELECT key FROM sessions WHERE ended_at <= ?) LIMIT ?""",
            horizon,
            _DELETED_AT_ONCE,
        )
        ((held,),) = self._query("SELECT coalesce(sum(size), 0) FROM executions")
        if not old and 0 < max_bytes < held:
            for row in self._query(
                """SELECT number, size FROM executions WHERE ended_at IS NOT NULL
                ORDER BY ended_at LIMIT ?""",
                _DELETED_AT_ONCE,
            ):
                old.append(row)
                held -= row[1]
                if held <= max_bytes:
                    break
        numbers = [(number,) for number, _ in old]
        with self._transaction() as execute_many:
            execute_many("DELETE FROM events WHERE number = ?", numbers)
            execute_many("DELETE FROM executions WHERE number = ?", numbers)
            execute_many("DELETE FROM entries WHERE until <= ?", [(now,)])
            if not numbers:
                execute_many(_EVENTS_OF_OLD, [(horizon,)])
                execute_many("DELETE FROM sessions WHERE ended_at <= ?", [(horizon,)])
        # `execute` would free one page only: it takes one step.
        self._connection.executescript(f"PRAGMA incremental_vacuum({_FREED_PAGES})")
        return bool(numbers)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A transaction. Yields `executemany`, which does nothing without rows."""
        connection = self._connection

        def execute_many(statement: str, rows: Sequence[Row]) -> None:
            if rows:
                connection.executemany(statement, rows)

        connection.execute("BEGIN IMMEDIATE")
        try:
            yield execute_many
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


_EVENTS_OF_OLD = """DELETE FROM session_events WHERE session_key IN
    (SELECT key FROM sessions WHERE ended_at <= ?)"""
