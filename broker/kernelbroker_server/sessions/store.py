"""The contract of the event store, and the store that keeps everything in memory.

The store records sessions and executions, numbers and keeps the events of each execution, and lets
readers follow them, now or later. A session is recorded under a key that is never used again; its
id may be used again. An event is stored before it is delivered: readers see only stored events.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Event, Result
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

_EXECUTIONS = 100
"""Executions that are remembered of one session."""
_EXECUTION_BYTES = 32 * 1024**2
"""Bytes that they may hold together, besides the latest."""
_WATCHER_LAG = 200
"""Executions that a watcher may be behind before it is cut off."""

PublicState: TypeAlias = Literal["queued", "running", "done"]


class StoredEvent(NamedTuple):
    """An event and its JSON, which is encoded once for all readers."""

    event: Event
    json: bytes


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The record of an opened session.

    Attributes:
        key: never used again; the id is unique only among the open sessions of a tenant.
        opened_at: seconds since the epoch.
    """

    key: str
    tenant: str
    session_id: str
    options: SessionOptions
    opened_at: float = field(default_factory=time.time)


class ExecutionLog(ABC):
    """The log of one execution: its request, and its numbered events up to the result.

    Attributes:
        id: unique in its session.
        packages: the packages that it installs; empty for a cell.
        findings: the warnings of the policy.
        accepted_at: seconds since the epoch.
        state: `running` from the moment a sandbox runs it.
        queued_s: seconds from its acceptance until a kernel took it, or until its end if none did.
        size: bytes of JSON that its events hold.
        result: the last event; None before.
    """

    def __init__(
        self,
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> None:
        self.id = execution_id
        self.request = request
        self.packages = tuple(packages)
        self.findings = list(findings)
        self.accepted_at = time.time()
        self.state: PublicState = "queued"
        self.queued_s: float | None = None
        self.size = 0
        self.result: Result | None = None
        self._request_size = len(encode(request))

    @property
    def weight(self) -> int:
        """The size of the request and the events in bytes."""
        return self._request_size + self.size

    @property
    def outcome(self) -> str:
        """Return `success` or the cause of the failure. The execution must have a result."""
        assert self.result is not None, "it has ended"
        detail = self.result.error_detail
        return "success" if detail is None else detail.cause

    @abstractmethod
    def append(self, event: Event) -> None:
        """Number and store an event. No event may follow a `Result`."""

    @abstractmethod
    def read(self, after: int = 0) -> Sequence[StoredEvent]:
        """Return the stored events whose `seq` is greater than `after`."""

    @abstractmethod
    def follow(self, after: int = 0) -> AsyncIterator[StoredEvent]:
        """Yield all events whose `seq` is greater than `after`, as they are stored, up to the result."""

    async def finished(self) -> Result:
        """Wait for the result."""
        async for _ in self.follow(len(self.read())):
            pass
        assert self.result is not None, "it is the last event"
        return self.result


Watcher: TypeAlias = "asyncio.Queue[ExecutionLog | None]"


class EventStore(ABC):
    """The record of all sessions and executions. Keys are those of `SessionRecord`."""

    @abstractmethod
    def record_session(self, session: SessionRecord) -> None:
        """Record an opened session."""

    @abstractmethod
    def end_session(self, key: str) -> None:
        """Record the end of a session: its watchers are notified, and its executions may be forgotten.

        A reader that holds a log can still read it to its end.
        """

    @abstractmethod
    def sessions(self, tenant: str) -> Sequence[SessionRecord]:
        """Return the sessions of a tenant that have not ended, oldest first."""

    @abstractmethod
    def create_execution(
        self,
        key: str | None,
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> ExecutionLog:
        """Create the log of a new execution, and notify the watchers.

        Args:
            key: the session that lists it; None for an internal cell, which is in no list.
        """

    @abstractmethod
    def executions(self, key: str) -> Mapping[str, ExecutionLog]:
        """Return the remembered executions of a session by id, oldest first."""

    @abstractmethod
    def watch(self, key: str) -> contextlib.AbstractContextManager[Watcher]:
        """Return a queue of the executions that are created from now on.

        None ends the queue: the watcher fell behind, or the session ended.
        """


class MemoryLog(ExecutionLog):
    """A log that keeps its events in a list.

    Each reader has its own cursor. A slow reader delays no other one and needs no buffer: unread
    events stay in the list. The output limit of the execution bounds the list.
    """

    def __init__(
        self,
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(execution_id, request, packages, findings)
        self._events: list[StoredEvent] = []
        self._readers: list[asyncio.Future[None]] = []
        """Of readers that have read everything and wait."""

    def append(self, event: Event) -> None:
        if self.result is not None:
            raise RuntimeError(f"an event after the result of {self.id}")
        event.execution_id = self.id
        event.seq = len(self._events) + 1
        stored = StoredEvent(event, encode(event))
        self._events.append(stored)
        self.size += len(stored.json)
        if isinstance(event, Result):
            self.result = event
            self.state = "done"
        readers, self._readers = self._readers, []
        for reader in readers:
            if not reader.done():
                reader.set_result(None)

    def read(self, after: int = 0) -> Sequence[StoredEvent]:
        return self._events[after:]

    async def follow(self, after: int = 0) -> AsyncIterator[StoredEvent]:
        position = after
        while True:
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self.result is not None:
                return
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
            except asyncio.CancelledError:
                with contextlib.suppress(ValueError):
                    self._readers.remove(reader)
                raise


@dataclass(slots=True)
class _Session:
    """A session's record and logs.

    Attributes:
        growing: the logs that had no result at the last look.
        ended_weight: of all other logs, in bytes.
    """

    record: SessionRecord
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
        held = self.ended_weight + sum(each.weight for each in self.growing)
        if len(self.logs) <= _EXECUTIONS and held <= _EXECUTION_BYTES:
            return
        for each in list(self.logs.values())[:-1]:
            if len(self.logs) <= _EXECUTIONS and held <= _EXECUTION_BYTES:
                break
            if each.result is not None:
                held -= each.weight
                self.ended_weight -= each.weight
                del self.logs[each.id]


class MemoryStore(EventStore):
    """An event store in memory. Its content ends with the broker."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def record_session(self, session: SessionRecord) -> None:
        self._sessions[session.key] = _Session(session)

    def end_session(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            for watcher in session.watchers:
                watcher.put_nowait(None)

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
    ) -> MemoryLog:
        log = MemoryLog(execution_id, request, packages, findings)
        if key is not None:
            session = self._sessions[key]
            session.add(log)
            for watcher in session.watchers:
                if watcher.qsize() < _WATCHER_LAG:
                    watcher.put_nowait(log)
                elif watcher.qsize() == _WATCHER_LAG:
                    watcher.put_nowait(None)
        return log

    def executions(self, key: str) -> Mapping[str, ExecutionLog]:
        session = self._sessions.get(key)
        return {} if session is None else session.logs

    @contextlib.contextmanager
    def watch(self, key: str) -> Iterator[Watcher]:
        queue: Watcher = asyncio.Queue()
        session = self._sessions.get(key)
        if session is None:
            queue.put_nowait(None)
            yield queue
            return
        session.watchers.add(queue)
        try:
            yield queue
        finally:
            session.watchers.discard(queue)
