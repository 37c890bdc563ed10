"""What came for one execution and was not yet taken: order, bounds, and the one who waits.

No connection is known here; `channel.py` puts events in and takes them out.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .protocol.errors import KernelBrokerError, ProtocolError
from .protocol.events import Event
from .protocol.messages import Execute

MAX_EVENTS = 1_000
MAX_BYTES = 8 * 2**20


class Inbox:
    """What came for one execution and was not yet taken."""

    def __init__(self, request: Execute, execution_id: str) -> None:
        self.request = request
        self.execution_id = execution_id
        self.events: deque[tuple[Event, int]] = deque()
        self.size = 0
        self.seen = 0
        self.resuming = False
        self.to_send_again = False
        self.was_sent_again = False
        self.failure: KernelBrokerError | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        return len(self.events) >= MAX_EVENTS or self.size >= MAX_BYTES

    def put(self, event: Event, size: int) -> None:
        """Take the next event; one that came before is dropped.

        While a resume is under way, live events may overtake it; they come again in their turn.
        """
        if event.seq != self.seen + 1:
            if event.seq > self.seen and not self.resuming:
                self.fail(ProtocolError(f"event {event.seq} came after event {self.seen}"))
            return
        self.seen = event.seq
        self.resuming = False
        self.events.append((event, size))
        self.size += size
        self.wake()

    def take(self) -> Event:
        event, size = self.events.popleft()
        self.size -= size
        return event

    def fail(self, failure: KernelBrokerError) -> None:
        """No more events come; those that are here can still be taken."""
        self.failure = self.failure or failure
        self.wake()

    def wake(self) -> None:
        # The waiter goes at once, so that `_is_awaited` is never behind the consumer's task.
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        self.waiter = None
