"""What is past, read from the database of a store: sessions, executions and their events.

Everything here blocks, and raises the errors of the database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import ProtocolError, Unavailable
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from ..telemetry.origin import Origin
from .lost_results import lost_result
from .memory_log import MemoryLog
from .memory_store import REMEMBERED
from .past_sessions import PastPage, Place, expect_size, page_of
from .queries import Queries, Row, Unended
from .rows import event_of, past_session_of, record_of
from .session_log import StoredHead
from .store import (
    Entry,
    ExecutionLog,
    ExecutionSummary,
    LeftSession,
    StoredEvent,
)

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])

logger = logging.getLogger(__name__)

_NOT_STORED = "the rest of its output could not be stored; the broker's log says why"
_NEVER_RAN = "the broker ended while it was waiting; send it again"
_FATE_UNKNOWN = "the broker ended while it was running; it is not run again"


class History:
    """Reads a database.

    Args:
        retention: seconds for which the executions of ended sessions are kept.
        clock: seconds since the epoch.

    Attributes:
        unread: the rows that could not be read.
        shares: what is open in the database may be another broker's.
    """

    shares = False

    def __init__(
        self, database: Queries, retention: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._retention = retention
        self._clock = clock
        self.unread = set[tuple[object, ...]]()

    def problems(self) -> list[str]:
        """Return what an operator should know."""
        return self.problems_of(self.unread)

    @staticmethod
    def problems_of(unread: Collection[object]) -> list[str]:
        count = len(unread)
        text = f"store: rows that cannot be read, and are left out: {count}; the broker's log names them"
        return [text] if count else []

    def _readable(self, rows: Iterable[R], make: Callable[[R], T], what: str) -> Iterator[T]:
        """Yield what `make` makes of rows, but of those that it cannot read: one must not stop everything.

        Args:
            what: a row stands for.
        """
        for row in rows:
            try:
                yield make(row)
            except (ProtocolError, ValueError, TypeError, LookupError) as exc:
                names = [each for each in row if isinstance(each, str | int)][:3]
                if (place := (what, *names)) not in self.unread:
                    self.unread.add(place)
                    logger.error("%s cannot be read, and is left out: %s: %s", what, names, exc)

    def entries(self) -> list[Entry]:
        """All entries, the first to expire first."""
        return [Entry(*row) for row in self._database.entries()]

    # What an earlier broker has left open.

    def open_sessions(self) -> list[LeftSession]:
        """Return the sessions that have not ended, oldest first."""
        begun = self._begun()

        def left(row: Row) -> LeftSession:
            *fields, closing = row
            record = record_of(*fields)
            progress = begun[record.key].progress if record.key in begun else None
            return LeftSession(record, progress, closing)

        return list(self._readable(self._database.open_sessions(), left, "a session"))

    def adoptable(self) -> list[LeftSession]:
        stuck = {key for key, each in self._begun().items() if not self._can_go_on(each)}
        return [
            left
            for left in self.open_sessions()
            if left.record.key not in stuck and not left.record.options.secrets
        ]

    def _begun(self) -> dict[str, Unended]:
        """Return the executions that ran when the last broker ended, by the keys of their sessions."""
        unended = self._database.unended()
        return {each.key: each for each in unended if each.begun and not each.passed}

    def _can_go_on(self, execution: Unended) -> bool:
        """Whether another broker can go on with an execution, of which it can read everything."""

        def can_go_on(each: Unended) -> bool:
            for json in self._database.events(each.number):
                event_of(json)
            return each.can_go_on

        return next(self._readable([execution], can_go_on, "an execution"), False)

    def latest_executions(self, key: str) -> list[tuple[int, MemoryLog]]:
        """Return the executions of an open session that are remembered, by number, oldest first."""

        def execution(row: Row) -> tuple[int, MemoryLog]:
            number, name, *rest, ended_at, allow_stdin, begun = row
            log = self._log(name, number, *rest, is_open=ended_at is None)
            log.allow_stdin = bool(allow_stdin)
            if begun and log.result is None:
                log.state = "running"
            return number, log

        rows = self._database.latest_executions(key, REMEMBERED)
        return list(self._readable(rows, execution, "an execution"))

    def lost_results(self, adopted: Collection[str]) -> list[tuple[int, int, bytes]]:
        """Return the results of executions that do not go on: their numbers, the `seq` and the JSON.

        Args:
            adopted: the keys of sessions that go on, with those of their executions that can.
        """
        results = []
        for each in self._database.unended():
            if each.key in adopted and self._can_go_on(each) and not each.passed:
                continue
            message = _FATE_UNKNOWN if each.begun else _NEVER_RAN
            if each.passed:
                message = _NOT_STORED
            result = lost_result(message, begun=bool(each.begun or each.passed))
            result.execution_id, result.seq = each.id, each.last + 1
            results.append((each.number, result.seq, encode(result)))
        if results:
            logger.warning("%d executions had not ended when their broker ended", len(results))
        return results

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

        def summary(row: Row) -> ExecutionSummary:
            _, number, execution_id, packages, accepted_at, *origin = row
            return ExecutionSummary(
                execution_id,
                accepted_at,
                tuple(decode_as(packages, list[str])),
                "done",
                self._last_result(number),
                Origin(*origin),
            )

        rows = self._database.executions(tenant, session_id, self._horizon)
        present = (row for row in rows if row[0] not in left_out)
        return list(self._readable(present, summary, "an execution"))

    def past_execution(
        self, tenant: str, session_id: str, execution_id: str
    ) -> ExecutionLog | None:
        """Return the execution, as `EventStore` describes.

        Raises:
            Unavailable: the execution goes on at another broker, or is being taken over.
        """
        row = self._database.execution(tenant, session_id, execution_id, self._horizon)
        if row is None:
            return None
        goes_on, *rest = row
        is_open = bool(goes_on) and self.shares

        def execution(row: Row) -> MemoryLog:
            return self._log(execution_id, *row, is_open=is_open)

        log = next(self._readable([tuple(rest)], execution, "an execution"), None)
        if is_open and log is not None and log.result is None:
            raise Unavailable("the execution is being taken over; ask again", retry_after=1)
        return log

    def past_sessions(self, tenant: str, text: str, limit: int, before: Place | None) -> PastPage:
        rows = self._database.past_sessions(tenant, self._horizon, before)
        last_event = partial(self._database.events, last=True)
        found = self._readable(rows, lambda row: past_session_of(row, last_event), "a past session")
        return page_of(found, text, limit)

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

        def execution(row: Row) -> tuple[int, ExecutionLog]:
            number, name, *rest, _ = row
            return number, self._log(name, number, *rest)

        found = {**dict(self._readable(rows, execution, "an execution")), **present}
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
        def event(row: tuple[str, int, bytes]) -> bytes:
            decode_as(row[2], StoredHead)
            return row[2]

        stored = self._database.session_events(key)
        rows = ((key, place, json) for place, json in enumerate(stored))
        return list(self._readable(rows, event, "an event of a session"))

    def past_session_events(self, tenant: str, session_id: str) -> list[bytes] | None:
        key = self._database.last_key(tenant, session_id, self._horizon)
        return None if key is None else self.session_events(key)

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
