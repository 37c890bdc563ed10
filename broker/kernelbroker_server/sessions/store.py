"""The contract of the event store.

The store records sessions and executions, numbers and keeps the events of each execution, and lets
readers follow them, now or later. A session is recorded under a key that is never used again; its
id may be used again. An event is stored before it is delivered: readers see only stored events.

`memory_store.py` keeps everything in memory. `durable_store.py` also keeps it on the disk.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Event, Result
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from ..telemetry.origin import Origin, current_origin
from . import watcher
from .entries import Entry as Entry
from .past_sessions import PastPage, Place
from .session_log import SessionLogs

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
        origin: who opened it, through which client.
    """

    key: str
    tenant: str
    session_id: str
    options: SessionOptions
    opened_at: float = field(default_factory=time.time)
    origin: Origin = field(default_factory=current_origin)


@dataclass(frozen=True, slots=True)
class LeftSession:
    """A session that an earlier broker has left open.

    Attributes:
        progress: how far the execution that ran had come, as JSON; None if none ran.
        closing: why it ends as soon as nothing is left to do; None if it does not.
    """

    record: SessionRecord
    progress: bytes | None = None
    closing: str | None = None


class ExecutionLog(ABC):
    """The log of one execution: its request, and its numbered events up to the result.

    Attributes:
        id: unique in its session.
        packages: the packages that it installs; empty for a cell.
        findings: the warnings of the policy.
        allow_stdin: its client answers `input()`.
        accepted_at: seconds since the epoch.
        origin: who asked for it, through which client.
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
        *,
        allow_stdin: bool = False,
    ) -> None:
        self.id = execution_id
        self.allow_stdin = allow_stdin
        self.request = request
        self.packages = tuple(packages)
        self.findings = list(findings)
        self.accepted_at = time.time()
        self.origin = current_origin()
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

    def begin(self, progress: msgspec.Struct | None = None) -> bool:  # noqa: ARG002
        """Record that a sandbox runs it from now on. Called before the sandbox gets the code.

        Args:
            progress: with it another broker can go on.

        Returns:
            False if it must not run: this could not be stored, so another broker could run it again.
        """
        self.state = "running"
        return True

    def proceed(
        self,
        progress: msgspec.Struct,  # noqa: ARG002
        received: int,
        forget: Callable[[int], None],
    ) -> None:
        """Record how far it has come, in place of what was recorded before.

        Args:
            received: the number of the latest message that was received of the kernel.
            forget: called with that number when what the messages up to it led to is stored, so that the
                gateway may forget them.
        """
        forget(received)

    async def stored(self) -> bool:
        """Wait until everything so far is stored. Returns whether it is, before too long."""
        return True

    @abstractmethod
    def append(self, event: Event) -> None:
        """Number and store an event. No event may follow a `Result`."""

    @abstractmethod
    def read(self, after: int = 0) -> Sequence[StoredEvent]:
        """Return the stored events whose `seq` is greater than `after`."""

    @abstractmethod
    def batches(self, after: int = 0) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """As `follow`, with the events that are there at the same time in one sequence."""

    async def follow(self, after: int = 0) -> AsyncGenerator[StoredEvent, None]:
        """Yield all events whose `seq` is greater than `after`, as they are stored, up to the result."""
        async with contextlib.aclosing(self.batches(after)) as batches:
            async for batch in batches:
                for stored in batch:
                    yield stored

    async def finished(self) -> Result:
        """Wait for the result."""
        async for _ in self.follow(len(self.read())):
            pass
        assert self.result is not None, "it is the last event"
        return self.result


class ExecutionSummary(NamedTuple):
    """An execution in a list. The fields are those of `ExecutionLog`."""

    id: str
    accepted_at: float
    packages: tuple[str, ...]
    state: PublicState
    result: Result | None
    origin: Origin = Origin()


Watcher: TypeAlias = watcher.Watcher[ExecutionLog]


class EventStore(SessionLogs):
    """The record of all sessions and executions. Keys are those of `SessionRecord`."""

    @abstractmethod
    async def start(self) -> None:
        """Open the store. Raises OSError if it cannot be used."""

    @abstractmethod
    async def adoptable(self) -> Sequence[LeftSession]:
        """Return the sessions that an earlier broker has left open, and that can go on in their sandboxes.

        That is not so with secrets, since they are not stored.
        """

    @abstractmethod
    async def end_lost(self, adopted: Collection[str] = ()) -> None:
        """End the sessions that an earlier broker has left open, and give their executions results.

        Args:
            adopted: the keys of sessions that go on, with those of their executions that can.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Close the store when everything is stored. Calling it again does no harm."""

    @abstractmethod
    def problems(self) -> Sequence[str]:
        """Return what an operator should know, for `/health`."""

    def expect_newest(self) -> None:
        """End this broker if a later one has taken the store, and with it the sessions. Called often."""

    async def flushed(self) -> None:
        """Wait until other brokers can see everything so far."""

    async def reserve(self, tenant: str, session_id: str, limit: int) -> bool:  # noqa: ARG002
        """Reserve room for a session that is being opened, among those of all brokers.

        Returns:
            whether the tenant has fewer sessions than the limit.
        """
        return True

    async def unreserve(self, tenant: str, session_id: str) -> None:
        """Give back what `reserve` has reserved, if the session is not opened."""

    @abstractmethod
    def record_session(self, session: SessionRecord) -> None:
        """Record an opened session."""

    def change_session(self, key: str, options: SessionOptions) -> None:
        """Record new options of a session that has not ended."""

    def close_when_idle(self, key: str, reason: str) -> None:
        """Record that the session ends as soon as nothing is left to do."""

    @abstractmethod
    def end_session(self, key: str, reason: str) -> None:
        """Record the end of a session: its watchers are notified, and its executions are history.

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
        *,
        allow_stdin: bool = False,
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
        """Return a queue of the executions that are created from now on."""

    # History: what can be read, also of sessions that have ended. It is bounded in time and size.

    @abstractmethod
    async def closed_reason(self, tenant: str, session_id: str) -> str | None:
        """Return why the latest session with this id ended; None if the store knows of none."""

    @abstractmethod
    async def past_sessions(
        self, tenant: str, text: str = "", limit: int = 100, before: Place | None = None
    ) -> PastPage:
        """Return sessions that have ended and contain a text, the latest first."""

    @abstractmethod
    async def past_executions(self, tenant: str, session_id: str) -> Sequence[ExecutionSummary]:
        """Return the executions of all sessions with this id, oldest first; the open one is the last."""

    @abstractmethod
    async def past_execution(
        self, tenant: str, session_id: str, execution_id: str
    ) -> ExecutionLog | None:
        """Return the latest execution with this id, of any session with that id. It may have ended."""

    @abstractmethod
    async def session_logs(
        self, tenant: str, session_id: str, max_bytes: int
    ) -> Sequence[ExecutionLog] | None:
        """Return all executions of the latest session with this id, oldest first.

        Args:
            max_bytes: of their requests and events.

        Returns:
            None if no such session is known.

        Raises:
            TooLarge, Unavailable
        """

    @abstractmethod
    async def session_of(self, tenant: str, execution_id: str) -> str | None:
        """Return the id of the session of the tenant's latest execution with this id; None if unknown."""

    # Entries.

    @abstractmethod
    def put_entry(self, entry: Entry) -> None:
        """Store an entry, in place of one with the same name."""

    @abstractmethod
    def entry(self, kind: str, tenant: str, name: str) -> Entry | None:
        """Return an entry; None if there is none or its time is over."""

    @abstractmethod
    def entries(self, kind: str) -> Sequence[Entry]:
        """Return the entries of a kind whose time is not over, of all tenants."""

    @abstractmethod
    def drop_entry(self, kind: str, tenant: str, name: str) -> None:
        """Remove an entry. Does nothing if there is none."""
