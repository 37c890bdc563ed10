"""The log of one execution in the durable store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from .memory_store import MemoryLog
from .records import EventAppended, ExecutionBegun, ExecutionCreated, Record
from .store import StoredEvent


def hidden(owner: ExecutionRequest | SessionOptions) -> dict[str, str]:
    """Return the names of its secrets, without their values."""
    return dict.fromkeys(owner.secrets, "")


class DurableLog(MemoryLog):
    """A log whose events are in the journal before they are in the list that readers follow.

    Args:
        number: of the execution in the database; an attribute, too.
        record: appends to the journal. Returns whether it did.
    """

    def __init__(
        self,
        number: int,
        record: Callable[[Record], bool],
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
        self._is_stored = True
        """Whether everything so far is in the journal. What follows a gap is not stored."""

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

    def begin(self, progress: msgspec.Struct | None = None) -> None:
        super().begin()
        self._store(ExecutionBegun(self.number, b"" if progress is None else encode(progress)))

    def proceed(self, progress: msgspec.Struct) -> None:
        self._store(ExecutionBegun(self.number, encode(progress)))

    def _keep(self, stored: StoredEvent) -> None:
        event = stored.event
        ended_at = time.time() if isinstance(event, Result) else None
        self._store(EventAppended(self.number, event.seq, stored.json, ended_at))
        super()._keep(stored)

    def _store(self, record: Record) -> None:
        self._is_stored = self._is_stored and self._record(record)
