"""What the stores that outlive a broker have in common.

Open sessions and their executions are in memory, as in `memory_store.py`. Each change is a record, which
the store keeps. A database has what has ended.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from ..workspaces.checkpoint_store import FOR_ONE_USE
from .durable_log import DurableLog, hidden
from .history import History
from .memory_log import MemoryLog
from .memory_store import MemorySession, MemoryStore, summaries
from .past_sessions import PastPage, Place
from .records import (
    EntryDropped,
    EntryPut,
    Record,
    SessionChanged,
    SessionClosing,
    SessionEnded,
    SessionEventAppended,
    SessionOpened,
)
from .session_log import Keep, SessionLog, StoredSessionEvent
from .store import (
    Entry,
    ExecutionLog,
    ExecutionSummary,
    LeftSession,
    SessionRecord,
)

T = TypeVar("T")


class RecordedStore(MemoryStore):
    """An event store that keeps records of all changes."""

    _next_number = 1

    @abstractmethod
    def _record(self, record: Record) -> bool:
        """Keep a record. Returns whether it is stored, or will be when there is room."""

    @abstractmethod
    async def _query(self, query: Callable[[Any], T]) -> T:
        """Ask the history, when it has what was recorded before. Raises Unavailable."""

    @abstractmethod
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
        """Return the log of an execution, which is not recorded yet."""

    def _take_number(self) -> int:
        """Return the number of a new execution. Later ones have higher numbers."""
        number = self._next_number
        self._next_number += 1
        return number

    async def adoptable(self) -> Sequence[LeftSession]:
        return await self._query(lambda history: history.adoptable())

    async def end_lost(self, adopted: Collection[str] = ()) -> None:
        left_open = await self._query(lambda history: history.open_sessions())
        await self._query(lambda history: history.end_lost(adopted))
        for record in (left.record for left in left_open):
            if record.key not in adopted:
                continue
            session = self._add_session(record)
            events = await self._query(partial(History.session_events, key=record.key))
            session.events.restore(events)
            for number, past in await self._query(
                partial(History.latest_executions, key=record.key)
            ):
                self._next_number = max(self._next_number, number + 1)
                log = self._new_log(
                    number,
                    past.id,
                    past.request,
                    past.packages,
                    past.findings,
                    allow_stdin=past.allow_stdin,
                )
                log.accepted_at, log.state = past.accepted_at, past.state
                log.origin = past.origin
                log.restore(past.read())
                session.add(log)

    # Changes, on the event loop.

    def record_session(self, session: SessionRecord) -> None:
        super().record_session(session)
        options = _stored(session.options)
        self._record(
            SessionOpened(
                session.key,
                session.tenant,
                session.session_id,
                options,
                session.opened_at,
                *session.origin,
            )
        )

    def _keeper(self, key: str) -> Keep:
        def keep(stored: StoredSessionEvent, first: int) -> None:
            self._record(SessionEventAppended(key, stored.seq, stored.json, first))

        return keep

    def change_session(self, key: str, options: SessionOptions) -> None:
        self._record(SessionChanged(key, _stored(options)))

    def close_when_idle(self, key: str, reason: str) -> None:
        self._record(SessionClosing(key, reason))

    def _remember(self, key: str, session: MemorySession, reason: str) -> None:  # noqa: ARG002
        text = reason.encode("utf-8", "replace").decode()
        self._record(SessionEnded(key, text, self._clock()))

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
        if key is None:
            return super().create_execution(
                key, execution_id, request, packages, findings, allow_stdin=allow_stdin
            )
        log = self._new_log(
            self._take_number(),
            execution_id,
            request,
            packages,
            findings,
            allow_stdin=allow_stdin,
        )
        log.created(key)
        self._list(key, log)
        return log

    def put_entry(self, entry: Entry) -> None:
        super().put_entry(entry)
        self._record(EntryPut(entry.kind, entry.tenant, entry.name, entry.value, entry.until))

    def drop_entry(self, kind: str, tenant: str, name: str) -> None:
        super().drop_entry(kind, tenant, name)
        self._record(EntryDropped(kind, tenant, name))

    # History.

    async def closed_reason(self, tenant: str, session_id: str) -> str | None:
        return await self._query(lambda history: history.closed_reason(tenant, session_id))

    async def past_session_log(self, tenant: str, session_id: str) -> SessionLog | None:
        events = await self._query(lambda history: history.past_session_events(tenant, session_id))
        return None if events is None else SessionLog.ended(events)

    async def continue_log(self, key: str, later: str) -> None:
        events = await self._query(lambda history: history.session_events(key))
        self.session_log(later).restore(events, keep=True)

    async def past_sessions(
        self, tenant: str, text: str = "", limit: int = 100, before: Place | None = None
    ) -> PastPage:
        return await self._query(lambda history: history.past_sessions(tenant, text, limit, before))

    async def past_executions(self, tenant: str, session_id: str) -> Sequence[ExecutionSummary]:
        sessions = self._open_sessions(tenant, session_id)
        present, keys = summaries(sessions), {session.record.key for session in sessions}
        ended = await self._query(lambda history: history.past_executions(tenant, session_id, keys))
        return [*ended, *present]

    async def past_execution(
        self, tenant: str, session_id: str, execution_id: str
    ) -> ExecutionLog | None:
        if (log := self._open_log(tenant, session_id, execution_id)) is not None:
            return log
        return await self._query(
            lambda history: history.past_execution(tenant, session_id, execution_id)
        )

    async def session_logs(
        self, tenant: str, session_id: str, max_bytes: int
    ) -> Sequence[ExecutionLog] | None:
        sessions = self._open_sessions(tenant, session_id)
        if not sessions:
            return await self._query(
                lambda history: history.session_logs(tenant, session_id, None, {}, max_bytes)
            )
        key = sessions[-1].record.key
        logs = {
            log.number: log for log in sessions[-1].logs.values() if isinstance(log, DurableLog)
        }
        return await self._query(
            lambda history: history.session_logs(tenant, session_id, key, logs, max_bytes)
        )

    async def session_of(self, tenant: str, execution_id: str) -> str | None:
        if (session_id := await super().session_of(tenant, execution_id)) is not None:
            return session_id
        return await self._query(lambda history: history.session_of(tenant, execution_id))


def _stored(options: SessionOptions) -> bytes:
    """The options as JSON, without the values of secrets and the checkpoint that was made for a fork."""
    begins_with = options.from_checkpoint
    if begins_with is not None and begins_with.startswith(FOR_ONE_USE):  # its name is no valid one
        begins_with = None
    changed = {"secrets": hidden(options), "from_checkpoint": begins_with}
    return encode(msgspec.structs.replace(options, **changed))
