"""The events of one execution that have arrived and were not taken yet. No I/O.

`connection.py` puts events in and takes them out.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .protocol.errors import KernelBrokerError, ProtocolError
from .protocol.events import Event
from .protocol.messages import Execute

MAX_EVENTS = 1_000
MAX_BYTES = 8 * 2**20


class EventQueue:
    """The events of one execution, in order, and the state of its delivery.

    Attributes:
        seen: `seq` of the last event that was put in.
        resuming: a resume was requested and its first event has not come yet.
        to_send_again: the broker never got the execution; it is to be sent again.
        failure: why no more events will come.
        waiter: the caller that waits for the next event.
    """

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
        """Add the next event; an event that was added before is dropped.

        While a resume is under way, live events may arrive before the missed ones. They are dropped,
        since the resume brings them again in order.
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
        """No more events will come; those that are here can still be taken."""
        self.failure = self.failure or failure
        self.wake()

    def wake(self) -> None:
        # Cleared at once, so that `_is_awaited` is right before the waiting task has run.
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        self.waiter = None
