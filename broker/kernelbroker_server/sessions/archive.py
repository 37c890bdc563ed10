"""The stored history: what lies in the state directory, as the store's thread sees it.

It copies the journal into the database, ends what a dead broker has left open, and reads what is past.
Everything here blocks, and raises sqlite3.Error and OSError.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import partial
from pathlib import Path

from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from ..telemetry.origin import Origin
from .database import Database
from .journal import Damaged, Journal, Segment, SegmentReader, left_segments
from .lost_results import lost_result
from .memory_log import MemoryLog
from .memory_store import REMEMBERED
from .past_sessions import PastPage, Place, page_of
from .queries import Unended
from .rows import event_of, past_session_of, record_of
from .schema import NewerVersion
from .state_directory import StateDirectory
from .store import (
    Entry,
    ExecutionLog,
    ExecutionSummary,
    LeftSession,
    StoredEvent,
    expect_size,
)

logger = logging.getLogger(__name__)

_NOT_STORED = "the rest of its output could not be stored; the broker's log says why"
_NEVER_RAN = "the broker ended while it was waiting; send it again"
_FATE_UNKNOWN = "the broker ended while it was running; it is not run again"


class Archive:
    """The database of a state directory.

    Args:
        retention, max_history: see `DurableStore`.
        clock: seconds since the epoch.

    Attributes:
        serial: that of the last record of the journal when it was opened.
    """

    def __init__(
        self,
        directory: StateDirectory,
        retention: float,
        max_history: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the database, and copy what a dead broker has left in its journal.

        A file that is damaged, or of a newer broker, is kept aside.
        """
        self._directory = directory
        self._retention = retention
        self._max_history = max_history
        self._clock = clock
        self._reader: SegmentReader | None = None
        self._has_gap = False
        """Records of the journal are lost."""
        segments = left_segments(directory.path)
        try:
            self._database = Database(directory.database)
        except NewerVersion as exc:
            for path in (directory.database, *(segment.path for segment in segments)):
                directory.set_aside(path, "newer", exc)
            self._database, segments = Database(directory.database), []
        except sqlite3.OperationalError:  # a full disk, missing permissions
            raise
        except sqlite3.DatabaseError as exc:
            directory.set_aside(directory.database, "damaged", exc)
            self._database = Database(directory.database)
        try:
            self.serial = self._replay(segments)
            if self._has_gap or directory.kept_aside():
                self._database.repair()
        except BaseException:
            self._database.abandon()
            raise

    def _replay(self, segments: Sequence[Segment]) -> int:
        """Copy the segments and remove them. Returns the serial number of the last record."""
        serial = self._database.applied
        for index, segment in enumerate(segments):
            if segment.first > serial + 1:
                logger.error(
                    "%s: records before it are missing, as after a power cut", segment.path
                )
                self._has_gap = True
            reader = SegmentReader(segment)
            try:
                while self._apply_batch(reader):
                    pass
            except Damaged as exc:
                for each in segments[index:]:
                    self._directory.set_aside(each.path, "damaged", exc)
                # A record has more than one byte, so no record that is lost had a higher number.
                last = segments[-1]
                return max(serial, last.first + last.size)
            finally:
                reader.close()
            if not reader.at_end:
                logger.info("%s: its last record was not completely written", segment.path)
            serial = max(serial, reader.serial)
        for segment in segments:
            segment.path.unlink()
        return serial

    def close(self, journal: Journal, *, complete: bool) -> None:
        """Close the files.

        Args:
            complete: the database has everything, so that the journal can be removed.
        """
        if self._reader is not None:
            self._reader.close()
        if complete:
            self._database.close()
            for segment in journal.segments:
                segment.path.unlink(missing_ok=True)
        else:
            self._database.abandon()

    @property
    def last_number(self) -> int:
        """The highest number of an execution."""
        return self._database.last_number

    def entries(self) -> list[Entry]:
        """All entries, the first to expire first."""
        return [Entry(*row) for row in self._database.entries()]

    def copy_to(self, path: Path) -> None:
        self._database.copy_to(path)

    # Changes.

    def copy(self, journal: Journal) -> None:
        """Copy everything that the journal has, and remove its complete segments."""
        segments = journal.segments
        while segments:
            is_closed = len(segments) > 1
            if self._reader is None:
                self._reader = SegmentReader(segments[0])
            try:
                if self._apply_batch(self._reader):
                    continue
            except BaseException:
                self._reader.close()
                self._reader = None  # the next one begins again
                raise
            if not is_closed:
                return
            self._reader.close()
            self._reader = None
            journal.remove_first()

    def _apply_batch(self, reader: SegmentReader) -> bool:
        """Copy the next records that the database does not have. Returns whether there were any records."""
        records = reader.batch()
        new = reader.serial - self._database.applied
        if records and new > 0:
            self._database.apply(records[-new:], reader.serial)
        return bool(records)

    def tidy(self) -> bool:
        """Remove some of what is too old or too much. Returns whether there may be more."""
        return self._database.expire(self._horizon, self._max_history, self._clock())

    def open_sessions(self) -> list[LeftSession]:
        """Return the sessions that have not ended, oldest first."""
        begun = self._begun()
        return [
            LeftSession(
                record_of(*row), begun[row[0]].progress if row[0] in begun else None, closing
            )
            for *row, closing in self._database.open_sessions()
        ]

    def adoptable(self) -> list[LeftSession]:
        stuck = {key for key, each in self._begun().items() if not each.can_go_on}
        return [
            left
            for left in self.open_sessions()
            if left.record.key not in stuck and not left.record.options.secrets
        ]

    def _begun(self) -> dict[str, Unended]:
        """Return the executions that ran when the last broker ended, by the keys of their sessions."""
        unended = self._database.unended()
        return {each.key: each for each in unended if each.begun and not each.passed}

    def latest_executions(self, key: str) -> list[tuple[int, MemoryLog]]:
        """Return the executions of an open session that are remembered, by number, oldest first."""
        found = []
        rows = self._database.latest_executions(key, REMEMBERED)
        for number, name, *rest, ended_at, allow_stdin, begun in rows:
            log = self._log(name, number, *rest, is_open=ended_at is None)
            log.allow_stdin = bool(allow_stdin)
            if begun and log.result is None:
                log.state = "running"
            found.append((number, log))
        return found

    def end_lost(self, adopted: Collection[str] = ()) -> None:
        """End what a dead broker has left open, except adopted sessions and what goes on in them.

        Each execution that ends gets a result.
        """
        results = []
        for each in self._database.unended():
            if each.key in adopted and each.can_go_on and not each.passed:
                continue
            message = _FATE_UNKNOWN if each.begun else _NEVER_RAN
            if each.passed:
                message = _NOT_STORED
            result = lost_result(message, begun=bool(each.begun or each.passed))
            result.execution_id, result.seq = each.id, each.last + 1
            results.append((each.number, result.seq, encode(result)))
        self._database.end_lost(results, "the broker ended", self._clock(), adopted)
        if results:
            logger.warning("%d executions had not ended when the last broker ended", len(results))

    # History. The contracts are those of `EventStore`.

    def closed_reason(self, tenant: str, session_id: str) -> str | None:
        return self._database.closed_reason(tenant, session_id, self._horizon)

    def past_executions(
        self, tenant: str, session_id: str, left_out: Container[str]
    ) -> list[ExecutionSummary]:
        """Return the executions of ended sessions.

        Args:
            left_out: keys of sessions that have ended meanwhile, perhaps.
        """
        return [
            ExecutionSummary(
                execution_id,
                accepted_at,
                tuple(decode_as(packages, list[str])),
                "done",
                self._last_result(number),
                Origin(*origin),
            )
            for key, number, execution_id, packages, accepted_at, *origin in self._database.executions(
                tenant, session_id, self._horizon
            )
            if key not in left_out
        ]

    def past_execution(
        self, tenant: str, session_id: str, execution_id: str
    ) -> ExecutionLog | None:
        row = self._database.execution(tenant, session_id, execution_id, self._horizon)
        return None if row is None else self._log(execution_id, *row)

    def past_sessions(self, tenant: str, text: str, limit: int, before: Place | None) -> PastPage:
        rows = self._database.past_sessions(tenant, self._horizon, before)
        last_event = partial(self._database.events, last=True)
        return page_of((past_session_of(row, last_event) for row in rows), text, limit)

    def session_logs(
        self,
        tenant: str,
        session_id: str,
        key: str | None,
        present: Mapping[int, ExecutionLog],
        max_bytes: int,
    ) -> list[ExecutionLog] | None:
        """Return the executions of a session, oldest first.

        Args:
            key: of the session; None for the one with this id that ended last.
            present: executions that are in memory, by number.

        Raises:
            TooLarge
        """
        key = key or self._database.last_key(tenant, session_id, self._horizon)
        if key is None:
            return None
        rows = [row for row in self._database.session(key) if row[0] not in present]
        in_memory = sum(log.weight for log in present.values())
        expect_size(in_memory + sum(row[-1] for row in rows), max_bytes)
        logs = {number: self._log(name, number, *rest) for number, name, *rest, _ in rows}
        found = {**logs, **present}
        return [found[number] for number in sorted(found)]

    def _log(
        self,
        execution_id: str,
        number: int,
        request: bytes,
        packages: bytes,
        findings: bytes,
        accepted_at: float,
        *origin: str,
        is_open: bool = False,
    ) -> MemoryLog:
        """Args:
        is_open: it may go on.
        """
        log = MemoryLog(
            execution_id,
            decode_as(request, ExecutionRequest),
            decode_as(packages, list[str]),
            decode_as(findings, list[Finding]),
        )
        log.accepted_at, log.origin = accepted_at, Origin(*origin)
        log.restore(StoredEvent(event_of(json), json) for json in self._database.events(number))
        if log.result is None and not is_open:
            log.append(lost_result(_NOT_STORED, begun=True))
        return log

    def session_events(self, key: str) -> list[bytes]:
        return self._database.session_events(key)

    def past_session_events(self, tenant: str, session_id: str) -> list[bytes] | None:
        key = self._database.last_key(tenant, session_id, self._horizon)
        return None if key is None else self._database.session_events(key)

    def session_of(self, tenant: str, execution_id: str) -> str | None:
        return self._database.session_of(tenant, execution_id, self._horizon)

    def _last_result(self, number: int) -> Result:
        for json in self._database.events(number, last=True):
            if isinstance(event := event_of(json), Result):
                return event
        return lost_result(_NOT_STORED, begun=True)

    @property
    def _horizon(self) -> float:
        return self._clock() - self._retention
