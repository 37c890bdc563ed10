"""One Jupyter client of a kernel: what it has asked for, and what it has still to be sent."""

from __future__ import annotations

import asyncio
from collections import deque

from .messages import ClientMessage

MAX_BYTES = 64 * 1024**2
"""Of messages that wait for a connected client. One that is further behind is disconnected."""
MAX_PARKED_BYTES = 8 * 1024**2
"""Of messages that wait for a client that has lost its connection."""
_MAX_REQUESTS = 1000
_MAX_SESSIONS = 32


class Client:
    """A client, which may lose its connection and come back.

    Attributes:
        session_id: the name by which it comes back; "" if it has none.
        sessions: what it has had in the headers of its requests.
        requests: of the shell channel, in order.
        pending: cells without a reply, by id.
        is_behind: it has read too slowly, and misses messages.
        is_ended: nothing follows.
        working: the task that handles its requests.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.sessions = _Sessions(session_id)
        self.requests: asyncio.Queue[ClientMessage] = asyncio.Queue(_MAX_REQUESTS)
        self.pending: dict[str, ClientMessage] = {}
        self.is_behind = False
        self.is_ended = False
        self.working: asyncio.Task[None] | None = None
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._limit = MAX_BYTES
        self._changed = asyncio.Event()
        self._answered = asyncio.Event()

    def answered(self, msg_id: str) -> ClientMessage | None:
        """A cell has its reply, or gets none. Returns it, if it was pending."""
        self._answered.set()
        return self.pending.pop(msg_id, None)

    async def until_turn(self, msg_id: str) -> None:
        """Wait until no other cell is pending."""
        while self.pending.keys() - {msg_id}:
            self._answered.clear()
            await self._answered.wait()

    def push(self, frame: bytes) -> None:
        """Send the client a message."""
        if self.is_behind or self.is_ended:
            return
        self._frames.append(frame)
        self._size += len(frame)
        if self._size > self._limit:
            self.is_behind = True
            self._frames.clear()
        self._changed.set()

    def end(self) -> None:
        """Let nothing follow."""
        self.is_ended = True
        self._changed.set()

    def park(self) -> None:
        """Keep less from now on, since nobody reads."""
        self._limit = MAX_PARKED_BYTES

    def connect(self) -> None:
        """Somebody reads again."""
        self._limit = MAX_BYTES

    async def next(self) -> bytes | None:
        """Wait for the next message; None if none follows."""
        while not self._frames:
            if self.is_behind or self.is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        frame = self._frames.popleft()
        self._size -= len(frame)
        return frame


class _Sessions:
    """The latest sessions that a client has named, in the headers of its requests."""

    def __init__(self, first: str) -> None:
        self._names: dict[str, None] = {first: None} if first else {}

    def add(self, name: str) -> None:
        if name and name not in self._names:
            while len(self._names) >= _MAX_SESSIONS:
                del self._names[next(iter(self._names))]
            self._names[name] = None

    def __contains__(self, name: str) -> bool:
        return name in self._names
