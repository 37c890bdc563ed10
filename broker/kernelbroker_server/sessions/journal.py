"""The events of one execution, numbered and kept, for whoever listens now or later.

A listener reads with a cursor of its own, so a slow one holds up nobody and costs no buffer: what it
has not read yet lies in the journal, whose size the execution's output limit bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Event, Result


class Entry(NamedTuple):
    """An event and its JSON, which is made once for all listeners."""

    event: Event
    json: bytes


class Journal:
    """Append until the result is in; follow from any point, any number of times."""

    def __init__(self, execution_id: str) -> None:
        self.execution_id = execution_id
        self.size = 0
        """Bytes of JSON held."""
        self.result: Result | None = None
        self._entries: list[Entry] = []
        self._changed = asyncio.Event()

    def append(self, event: Event) -> None:
        """Number the event and keep it. After a `Result` nothing may follow."""
        if self.result is not None:
            raise RuntimeError(f"an event after the result of {self.execution_id}")
        event.execution_id = self.execution_id
        event.seq = len(self._entries) + 1
        entry = Entry(event, encode(event))
        self._entries.append(entry)
        self.size += len(entry.json)
        if isinstance(event, Result):
            self.result = event
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, after: int = 0) -> AsyncIterator[Entry]:
        """All entries whose `seq` is greater than `after`, as they come; ends with the result."""
        position = after
        while True:
            changed = self._changed
            while position < len(self._entries):
                yield self._entries[position]
                position += 1
            if self.result is not None:
                return
            if changed is self._changed:
                await changed.wait()
