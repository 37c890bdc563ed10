"""The events of one session for a front end: numbered, stored, bounded, and followed by any readers.

The executions of operations are mirrored here: their `test_output` and their `result`.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import BadRequest, TooManyRequests
from kernelbroker.protocol.events import Display, Event, Result
from kernelbroker.protocol.operations import TEST_OUTPUT_MIME
from kernelbroker.protocol.session_events import (
    MAX_EVENT_BYTES,
    CodeOperation,
    OperationResult,
    SessionEvent,
    TestOutput,
)

MAX_EVENTS = 2_000
MAX_BYTES = 4 * 1024**2
"""Of the events of one session that are kept. The oldest are forgotten first."""
MAX_READERS = 64
"""Of one session at the same time."""
_SHOWN_BYTES = 32 * 1024
_SHOWN_CHARS = 200
_ERROR_CHARS = 2_000
"""With what is shown of a result, at most MAX_EVENT_BYTES, however their JSON is escaped."""
BROKER = "broker"
"""The source of the broker's own events."""


class StoredSessionEvent(NamedTuple):
    """An event as it is stored."""

    seq: int
    type: str
    json: bytes


class StoredHead(msgspec.Struct):
    """What the broker reads of an event that is stored."""

    seq: int
    type: str
    source: str = ""
    execution_id: str | None = None
    operation: str | None = None


Keep = Callable[[StoredSessionEvent, int], None]


def keep_nothing(stored: StoredSessionEvent, first: int) -> None:
    """For a log that ends with the broker."""


class SessionLog:
    """The events of one session.

    Args:
        keep: stores an event, and forgets those before the `seq` that it is called with. It is called
            before readers see the event.
    """

    def __init__(self, keep: Keep = keep_nothing) -> None:
        self._keep = keep
        self._events: deque[StoredSessionEvent] = deque()
        self._size = 0
        self._last = 0
        self._has_ended = False
        self._changed: list[asyncio.Future[None]] = []
        self._readers = 0
        self._operations: dict[str, str] = {}
        """The names of operations that run as executions, by the executions' ids."""

    @classmethod
    def ended(cls, events: Iterable[bytes] = ()) -> SessionLog:
        """Return the log of a session that has ended."""
        log = cls()
        log.restore(events)
        log.end()
        return log

    @property
    def last(self) -> int:
        """The `seq` of the latest event; 0 if there is none."""
        return self._last

    @property
    def weight(self) -> int:
        """The size of the events in bytes."""
        return self._size

    @property
    def has_ended(self) -> bool:
        """Whether the session has ended, so that no event follows."""
        return self._has_ended

    def append(self, event: SessionEvent, source: str = BROKER) -> StoredSessionEvent:
        """Number and store an event. Raises BadRequest if it is too large."""
        event.seq, event.source = self._last + 1, source
        event.at = datetime.now(UTC).replace(microsecond=0)
        json = encode(event)
        if len(json) > MAX_EVENT_BYTES:
            raise BadRequest(
                f"the event has {len(json):,} bytes as JSON; {MAX_EVENT_BYTES:,} is the limit"
            )
        stored = StoredSessionEvent(event.seq, str(type(event).__struct_config__.tag), json)
        self._add(stored)
        self._keep(stored, self._events[0].seq)
        if isinstance(event, CodeOperation) and event.execution_id and source == BROKER:
            self._operations[event.execution_id] = event.operation
        changed, self._changed = self._changed, []
        for reader in changed:
            if not reader.done():
                reader.set_result(None)
        return stored

    def mirror(self, execution_id: str, event: Event) -> None:
        """Append what an event of an execution means here, if the execution is an operation."""
        if (operation := self._operations.get(execution_id)) is None:
            return
        if isinstance(event, Display) and TEST_OUTPUT_MIME in event.data:
            self.append(_test_output(execution_id, event.data[TEST_OUTPUT_MIME]))
        elif isinstance(event, Result):
            del self._operations[execution_id]
            self.append(_result(operation, execution_id, event))

    def restore(self, events: Iterable[bytes], *, keep: bool = False) -> None:
        """Fill the log with events that were stored before; with `keep`, store them as its own."""
        for json in events:
            found = decode_as(json, StoredHead)
            stored = StoredSessionEvent(found.seq, found.type, json)
            self._add(stored)
            if keep:
                self._keep(stored, self._events[0].seq)
            if found.source != BROKER or not (name := found.execution_id):
                continue
            if found.type == "code_operation":
                self._operations[name] = found.operation or ""
            elif found.type == "result":
                self._operations.pop(name, None)

    def end(self) -> None:
        """The session has ended: readers get what is stored, and no more."""
        self._has_ended = True
        for reader in self._changed:
            if not reader.done():
                reader.set_result(None)
        self._changed = []

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Count a reader that stays during the block. Raises TooManyRequests."""
        if self._readers >= MAX_READERS:
            raise TooManyRequests(
                f"the events of this session have {MAX_READERS} readers; close one", retry_after=5
            )
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    def read(self, after: int = 0) -> Sequence[StoredSessionEvent]:
        """Return the stored events whose `seq` is greater than `after`."""
        return [each for each in self._events if each.seq > after]

    async def follow(self, after: int = 0) -> AsyncGenerator[StoredSessionEvent, None]:
        """Yield the events after `after` as they are stored, until the session ends.

        A reader that is so slow that events are forgotten meanwhile misses them.
        """
        while True:
            for stored in self.read(after) if after < self._last else ():
                yield stored
                after = stored.seq
            if after < self._last and self._events:
                continue
            if self._has_ended:
                return
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.append(changed)
            try:
                await changed
            finally:
                with contextlib.suppress(ValueError):
                    self._changed.remove(changed)

    def _add(self, stored: StoredSessionEvent) -> None:
        self._events.append(stored)
        self._last = stored.seq
        self._size += len(stored.json)
        while len(self._events) > MAX_EVENTS or self._size > MAX_BYTES:
            self._size -= len(self._events.popleft().json)


class SessionLogs(ABC):
    """The part of the event store that keeps the events of sessions. Keys are those of `SessionRecord`."""

    @abstractmethod
    def session_log(self, key: str) -> SessionLog:
        """Return the events of a session that has not ended; an ended log if it has."""

    @abstractmethod
    async def past_session_log(self, tenant: str, session_id: str) -> SessionLog | None:
        """Return the events of the session with this id that ended last; None if none is known."""

    async def continue_log(self, key: str, later: str) -> None:  # noqa: B027
        """Give the events of an ended session to the one that goes on in its place."""


def _test_output(execution_id: str, seen: object) -> TestOutput:
    """The tests that have ended. The content comes from the sandbox, so it may be anything."""
    found = seen if isinstance(seen, Mapping) else {}
    event = TestOutput(operation_id=execution_id, execution_id=execution_id)
    for name in ("passed", "failed", "errors", "skipped"):
        count = found.get(name)
        if type(count) is int and 0 <= count < 2**53:
            setattr(event, name, count)
    tests = found.get("tests")
    if isinstance(tests, list):
        event.tests = [each for each in tests[:1_000] if isinstance(each, dict)]
        while event.tests and len(encode(event.tests)) > _SHOWN_BYTES:
            event.tests = event.tests[: len(event.tests) // 2]
    return event


def _result(operation: str, execution_id: str, result: Result) -> OperationResult:
    """The result of an execution as that of its operation."""
    answer = result.return_value if isinstance(result.return_value, dict) else {}
    detail = result.error_detail
    success = result.success and answer.get("success") is True
    error = answer.get("error") if result.success else result.error
    code = answer.get("code") if result.success else detail and detail.cause
    seconds = result.execution_time
    return operation_result(
        operation,
        execution_id,
        success=success,
        error=None if success else str(error or "it sent no valid answer"),
        code=None if success else str(code or "failed"),
        result=answer.get("result"),
        milliseconds=None if seconds is None else round(seconds * 1000),
        execution_id=execution_id,
    )


def operation_result(
    operation: str,
    operation_id: str,
    *,
    success: bool,
    error: str | None,
    code: str | None,
    result: object,
    milliseconds: int | None,
    execution_id: str = "",
) -> OperationResult:
    """The event of an operation that has ended, with so much of its result as is small."""
    return OperationResult(
        success=success,
        operation=operation,
        operation_id=operation_id,
        execution_id=execution_id,
        error=None if error is None else error[:_ERROR_CHARS],
        code=None if code is None else code[:_SHOWN_CHARS],
        execution_time_ms=milliseconds,
        result=_small(result),
    )


def _small(result: object) -> object:
    """The result; of a large one the numbers and short texts."""
    try:
        if len(encode(result)) <= _SHOWN_BYTES:
            return result
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    if not isinstance(result, Mapping):
        return None
    return {
        name: value
        for name, value in [*result.items()][:100]
        if value is None
        or isinstance(value, bool | int | float)
        or (isinstance(value, str) and len(value) <= _SHOWN_CHARS)
    }
