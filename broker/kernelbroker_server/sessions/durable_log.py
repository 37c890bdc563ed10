"""The log of one execution in the durable store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from .memory_log import MemoryLog
from .records import EventAppended, ExecutionBegun, ExecutionCreated, Record
from .store import StoredEvent


def hidden(owner: ExecutionRequest | SessionOptions) -> dict[str, str]:
    """Return the names of its secrets, without their values."""
    return dict.fromkeys(owner.secrets, "")


class DurableLog(MemoryLog):
    """A log whose events are in the journal before they are in the list that readers follow.

    Args:
        number: of the execution in the database; an attribute, too.
        record: stores a record, at once or when there is room. Returns False if it is lost.
        is_behind: returns whether records wait for room.
    """

    def __init__(
        self,
        number: int,
        record: Callable[[Record], bool],
        is_behind: Callable[[], bool],
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str] = (),
        findings: Sequence[Finding] = (),
        *,
        allow_stdin: bool = False,
    ) -> None:
        super().__init__(execution_id, request, packages, findings, allow_stdin=allow_stdin)
        self.number = number
        self._record = record
        self._is_behind = is_behind
        self._is_stored = True
        """Whether everything so far is stored, or waits for room. What follows a gap is not stored."""
        self._is_known = True
        """Whether another broker would know of the execution."""

    @property
    def is_stored(self) -> bool:
        return self._is_stored and not self._is_behind()

    def created(self, key: str) -> None:
        """Store the execution itself."""
        self._store(
            ExecutionCreated(
                self.number,
                key,
                self.id,
                encode(msgspec.structs.replace(self.request, secrets=hidden(self.request))),
                encode(self.packages),
                encode(self.findings),
                self.accepted_at,
                self.allow_stdin,
                *self.origin,
            )
        )
        self._is_known = self._is_stored and not self._is_behind()

    def begin(self, progress: msgspec.Struct | None = None) -> bool:
        super().begin()
        self._store(ExecutionBegun(self.number, b"" if progress is None else encode(progress)))
        return not self._is_known or (self._is_stored and not self._is_behind())

    def proceed(
        self, progress: msgspec.Struct, received: int, forget: Callable[[int], None]
    ) -> None:
        self._store(ExecutionBegun(self.number, encode(progress)))
        forget(received)

    def _keep(self, stored: StoredEvent) -> None:
        event = stored.event
        ended_at = time.time() if isinstance(event, Result) else None
        self._store(EventAppended(self.number, event.seq, stored.json, ended_at))
        super()._keep(stored)

    def _store(self, record: Record) -> None:
        self._is_stored = self._is_stored and self._record(record)
