"""An event store in memory. Its content ends with the broker."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial

from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from .memory_entries import MemoryEntries
from .memory_log import MemoryLog
from .past_sessions import LastCell, PastPage, PastSession, Place, expect_size, page_of
from .session_log import Keep, SessionLog, keep_nothing
from .store import (
    ExecutionLog,
    ExecutionSummary,
    LeftSession,
    SessionRecord,
    Watcher,
)

REMEMBERED = 100
"""Executions that are remembered of one session."""
_EXECUTION_BYTES = 32 * 1024**2
"""Bytes that they may hold together, besides the latest."""
_WATCHER_LAG = 200
"""Executions that a watcher may be behind before it is cut off."""
_SESSION_BYTES = 1_000
"""What an ended session takes besides its executions, about."""


@dataclass(slots=True)
class MemorySession:
    """A session's record and logs.

    Attributes:
        growing: the logs that had no result at the last look.
        ended_weight: of all other logs, in bytes.
    """

    record: SessionRecord
    events: SessionLog
    logs: dict[str, MemoryLog] = field(default_factory=dict)
    growing: list[MemoryLog] = field(default_factory=list)
    ended_weight: int = 0
    watchers: set[Watcher] = field(default_factory=set)

    def add(self, log: MemoryLog) -> None:
        """Add a log, and forget the oldest ended ones beyond the limits."""
        self.ended_weight += sum(each.weight for each in self.growing if each.result is not None)
        self.growing = [each for each in self.growing if each.result is None]
        self.growing.append(log)
        self.logs[log.id] = log
        log.mirror = self.events.mirror
        held = self.ended_weight + sum(each.weight for each in self.growing)
        if len(self.logs) <= REMEMBERED and held <= _EXECUTION_BYTES:
            return
        for each in list(self.logs.values())[:-1]:
            if len(self.logs) <= REMEMBERED and held <= _EXECUTION_BYTES:
                break
            if each.result is not None:
                held -= each.weight
                self.ended_weight -= each.weight
                del self.logs[each.id]
                if each.is_stored:
                    for watcher in self.watchers:
                        watcher.forget(each)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A session that has ended, at a time of the store's clock."""

    session: MemorySession
    reason: str
    at: float
    weight: int


def _past(ended: _Ended) -> PastSession:
    record, logs = ended.session.record, ended.session.logs
    last = None
    if logs:
        log = list(logs.values())[-1]
        success = None if log.result is None else log.result.success
        last = LastCell(log.id, log.accepted_at, log.request, success, log.origin)
    return PastSession(
        record.key,
        record.session_id,
        record.options,
        record.opened_at,
        ended.at,
        ended.reason,
        record.origin,
        len(logs),
        last,
    )


def summaries(sessions: Iterable[MemorySession]) -> list[ExecutionSummary]:
    return [
        ExecutionSummary(log.id, log.accepted_at, log.packages, log.state, log.result, log.origin)
        for session in sessions
        for log in session.logs.values()
    ]


class MemoryStore(MemoryEntries):
    """An event store in memory.

    Args:
        retention: seconds for which the executions of ended sessions are kept.
        max_history: bytes that these may hold together.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        retention: float = 86400.0,
        max_history: int = 64 * 1024**2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(clock)
        self._retention = retention
        self._max_history = max_history
        self._sessions: dict[str, MemorySession] = {}
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._ended_weight = 0

    async def start(self) -> None:
        pass

    async def adoptable(self) -> Sequence[LeftSession]:
        return ()

    async def end_lost(self, adopted: Collection[str] = ()) -> None:
        pass

    async def stop(self) -> None:
        pass

    def problems(self) -> Sequence[str]:
        return ()

    def record_session(self, session: SessionRecord) -> None:
        self._add_session(session)

    def _add_session(self, record: SessionRecord) -> MemorySession:
        session = self._sessions[record.key] = MemorySession(
            record, SessionLog(self._keeper(record.key))
        )
        return session

    def _keeper(self, key: str) -> Keep:  # noqa: ARG002
        """Return what stores the events of a session."""
        return keep_nothing

    def end_session(self, key: str, reason: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            self._remember(key, session, reason)
            session.events.end()
            for watcher in session.watchers:
                watcher.put(None)

    def _remember(self, key: str, session: MemorySession, reason: str) -> None:
        weight = _SESSION_BYTES + session.events.weight
        weight += sum(log.weight for log in session.logs.values())
        self._ended[key] = _Ended(session, reason, self._clock(), weight)
        self._ended_weight += weight
        while self._ended_weight > self._max_history:
            self._forget_first()

    def _forget_expired(self) -> None:
        horizon = self._clock() - self._retention
        while self._ended and next(iter(self._ended.values())).at <= horizon:
            self._forget_first()

    def _forget_first(self) -> None:
        self._ended_weight -= self._ended.popitem(last=False)[1].weight

    def sessions(self, tenant: str) -> Sequence[SessionRecord]:
        records = (session.record for session in self._sessions.values())
        return [record for record in records if record.tenant == tenant]

    def create_execution(
        self,
        key: str | None,
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str] = (),
        findings: Sequence[Finding] = (),
        *,
        allow_stdin: bool = False,
    ) -> MemoryLog:
        log = MemoryLog(execution_id, request, packages, findings, allow_stdin=allow_stdin)
        if key is not None:
            self._list(key, log)
        return log

    def _list(self, key: str, log: MemoryLog) -> None:
        """Add the log of a new execution to its session."""
        session = self._sessions[key]
        session.add(log)
        for watcher in session.watchers:
            if watcher.lag < _WATCHER_LAG:
                watcher.put(log)
            elif watcher.lag == _WATCHER_LAG:
                watcher.put(None)

    def executions(self, key: str) -> Mapping[str, ExecutionLog]:
        session = self._sessions.get(key)
        return {} if session is None else session.logs

    @contextlib.contextmanager
    def watch(self, key: str) -> Iterator[Watcher]:
        session = self._sessions.get(key)
        place = ("", "") if session is None else (session.record.tenant, session.record.session_id)
        watcher = Watcher(partial(self.past_execution, *place))
        if session is None:
            watcher.put(None)
            yield watcher
            return
        session.watchers.add(watcher)
        try:
            yield watcher
        finally:
            session.watchers.discard(watcher)

    # History.

    async def closed_reason(self, tenant: str, session_id: str) -> str | None:
        return next((each.reason for each in reversed(self._past(tenant, session_id))), None)

    async def past_sessions(
        self, tenant: str, text: str = "", limit: int = 100, before: Place | None = None
    ) -> PastPage:
        self._forget_expired()
        ended = (
            _past(each) for each in self._ended.values() if each.session.record.tenant == tenant
        )
        found = sorted(ended, key=lambda session: session.place, reverse=True)
        return page_of((s for s in found if before is None or s.place < before), text, limit)

    async def past_executions(self, tenant: str, session_id: str) -> Sequence[ExecutionSummary]:
        ended = [each.session for each in self._past(tenant, session_id)]
        return summaries([*ended, *self._open_sessions(tenant, session_id)])

    async def past_execution(
        self, tenant: str, session_id: str, execution_id: str
    ) -> ExecutionLog | None:
        if (log := self._open_log(tenant, session_id, execution_id)) is not None:
            return log
        for each in reversed(self._past(tenant, session_id)):
            if (log := each.session.logs.get(execution_id)) is not None:
                return log
        return None

    async def session_logs(
        self, tenant: str, session_id: str, max_bytes: int
    ) -> Sequence[ExecutionLog] | None:
        past = [each.session for each in self._past(tenant, session_id)]
        sessions = [*past, *self._open_sessions(tenant, session_id)]
        if not sessions:
            return None
        logs = list(sessions[-1].logs.values())
        expect_size(sum(log.weight for log in logs), max_bytes)
        return logs

    async def session_of(self, tenant: str, execution_id: str) -> str | None:
        self._forget_expired()
        ended = (each.session for each in reversed(self._ended.values()))
        for session in (*reversed(self._sessions.values()), *ended):
            if session.record.tenant == tenant and execution_id in session.logs:
                return session.record.session_id
        return None

    def session_log(self, key: str) -> SessionLog:
        session = self._sessions.get(key)
        return SessionLog.ended() if session is None else session.events

    async def past_session_log(self, tenant: str, session_id: str) -> SessionLog | None:
        past = self._past(tenant, session_id)
        return past[-1].session.events if past else None

    def _open_log(self, tenant: str, session_id: str, execution_id: str) -> MemoryLog | None:
        for session in reversed(self._open_sessions(tenant, session_id)):
            if (log := session.logs.get(execution_id)) is not None:
                return log
        return None

    def _open_sessions(self, tenant: str, session_id: str) -> list[MemorySession]:
        """Return the sessions with this id that have not ended. All but one of them are closing."""
        wanted, sessions = (tenant, session_id), self._sessions.values()
        return [each for each in sessions if (each.record.tenant, each.record.session_id) == wanted]

    def _past(self, tenant: str, session_id: str) -> list[_Ended]:
        """Return the ended sessions with this id, oldest first."""
        self._forget_expired()
        wanted = (tenant, session_id)
        sessions = self._ended.values()
        return [
            e for e in sessions if (e.session.record.tenant, e.session.record.session_id) == wanted
        ]
