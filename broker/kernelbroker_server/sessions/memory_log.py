"""The log of one execution in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Event, Result, Started
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from .store import ExecutionLog, StoredEvent

BATCH_EVENTS = 256
"""Events that a reader gets at once."""


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
        *,
        allow_stdin: bool = False,
    ) -> None:
        super().__init__(execution_id, request, packages, findings, allow_stdin=allow_stdin)
        self._events: list[StoredEvent] = []
        self.mirror: Callable[[str, Event], None] | None = None
        """Gets each event when it is stored."""
        self._readers: list[asyncio.Future[None]] = []
        """Of readers that have read everything and wait."""

    @property
    def is_stored(self) -> bool:
        """Whether the store finds it again when it is not in memory."""
        return False

    def append(self, event: Event) -> None:
        if self.result is not None:
            raise RuntimeError(f"an event after the result of {self.id}")
        event.execution_id = self.id
        event.seq = len(self._events) + 1
        stored = StoredEvent(event, encode(event))
        self._keep(stored)
        if isinstance(event, Result):
            self.result = event
            self.state = "done"
        self._wake_readers()
        if self.mirror is not None:
            self.mirror(self.id, event)

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            if not reader.done():
                reader.set_result(None)

    def _keep(self, stored: StoredEvent) -> None:
        """Store the event. No reader has seen it."""
        self._events.append(stored)
        self.size += len(stored.json)

    def restore(self, events: Iterable[StoredEvent]) -> None:
        """Fill the log with numbered events that were stored before."""
        for stored in events:
            MemoryLog._keep(self, stored)
            if isinstance(stored.event, Started):
                self.queued_s = stored.event.queued_s
            if isinstance(stored.event, Result):
                self.result = stored.event
                self.state = "done"

    def read(self, after: int = 0) -> Sequence[StoredEvent]:
        return self._events[after:]

    async def batches(self, after: int = 0) -> AsyncGenerator[Sequence[StoredEvent], None]:
        position = after
        while True:
            while batch := self._events[position : position + BATCH_EVENTS]:
                position += len(batch)
                yield batch
            if self.result is not None:
                return
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
                # A small cell has its first event and its last one in this turn of the event loop.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                with contextlib.suppress(ValueError):
                    self._readers.remove(reader)
                raise
