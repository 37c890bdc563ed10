"""The log of one execution in a store on PostgreSQL: readers see an event when it is committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from .durable_log import DurableLog
from .memory_log import BATCH_EVENTS
from .records import ExecutionBegun, Record
from .store import StoredEvent

_BEGIN_S = 10.0
"""For how long a cell waits until its beginning is stored."""


class Commits(Protocol):
    """What has been committed."""

    last: int
    """The number of the record that was recorded last."""
    stored: int
    """The number of the last record that is committed."""

    def when_stored(self, callback: Callable[[], None]) -> None:
        """Call this when everything that was recorded so far is committed."""

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for that. Returns whether it is."""


class PostgresLog(DurableLog):
    """A log whose events are numbered at once, and delivered when they are committed."""

    def __init__(
        self,
        number: int,
        record: Callable[[Record], bool],
        commits: Commits,
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str] = (),
        findings: Sequence[Finding] = (),
        *,
        allow_stdin: bool = False,
    ) -> None:
        super().__init__(
            number,
            record,
            lambda: False,
            execution_id,
            request,
            packages,
            findings,
            allow_stdin=allow_stdin,
        )
        self._commits = commits
        self._visible = 0

    def proceed(
        self, progress: msgspec.Struct, received: int, forget: Callable[[int], None]
    ) -> None:
        self._store(ExecutionBegun(self.number, encode(progress)))
        self._commits.when_stored(partial(forget, received))

    async def stored(self) -> bool:
        return await self._commits.wait(_BEGIN_S)

    def restore(self, events: Iterable[StoredEvent]) -> None:
        super().restore(events)
        self._visible = len(self._events)

    def _keep(self, stored: StoredEvent) -> None:
        super()._keep(stored)
        seq = stored.event.seq

        def show() -> None:
            self._visible = seq
            self._wake_readers()

        self._commits.when_stored(show)

    async def batches(self, after: int = 0) -> AsyncGenerator[Sequence[StoredEvent], None]:
        position = after
        while True:
            while batch := self._events[position : min(self._visible, position + BATCH_EVENTS)]:
                position += len(batch)
                yield batch
            if self.result is not None and self._visible >= len(self._events):
                return
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
            except asyncio.CancelledError:
                with contextlib.suppress(ValueError):
                    self._readers.remove(reader)
                raise
