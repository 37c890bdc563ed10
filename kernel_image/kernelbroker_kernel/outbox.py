"""The messages that the broker may ask for again. No I/O.

What lies in the socket of a broker that is killed is gone. So each message has a number, and is kept until
the broker has stored what it made of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

MAX_BYTES = 8 * 1024**2
"""Of the messages that are kept. While there are more, the kernel is held back."""


class Outbox:
    """The messages that are not acknowledged.

    Attributes:
        last: the number of the latest message. The first one has the number 1.
    """

    def __init__(self) -> None:
        self.last = 0
        self._messages: deque[Sequence[bytes]] = deque()
        self._size = 0

    @property
    def first(self) -> int:
        """The number of the oldest message that is kept, or else of the next one."""
        return self.last - len(self._messages) + 1

    @property
    def is_full(self) -> bool:
        return self._size > MAX_BYTES

    def add(self, message: Sequence[bytes]) -> None:
        """Number and keep a message, given in pieces."""
        self.last += 1
        self._messages.append(message)
        self._size += sum(map(len, message))

    def acknowledge(self, number: int) -> None:
        """Forget the messages up to this number."""
        while self._messages and self.first <= number:
            self._size -= sum(map(len, self._messages.popleft()))

    def kept(self) -> list[bytes]:
        """All messages, in pieces."""
        return [piece for message in self._messages for piece in message]
