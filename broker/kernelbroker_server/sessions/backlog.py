"""Records that the journal could not take, for example because the disk was full. They wait in memory."""

from __future__ import annotations

from collections import deque

from .journal import Journal
from .records import Record, encode_record

MAX_BYTES = 32 * 1024**2
"""Of records that wait."""


class Backlog:
    """Appends records to the journal in order, those that wait before later ones.

    Attributes:
        waiting: how many records wait.
        failure: why the journal refused the latest record; None if it took it.
    """

    def __init__(self, journal: Journal) -> None:
        self.failure: OSError | None = None
        self._journal = journal
        self._waiting: deque[tuple[Record, int]] = deque()
        self._size = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def append(self, record: Record) -> bool:
        """Append a record, now or later. Returns False if too many wait: then it is lost."""
        self.flush()
        if not self._waiting and self._try(record):
            return True
        size = len(encode_record(record))
        if self._size + size > MAX_BYTES:
            return False
        self._waiting.append((record, size))
        self._size += size
        return True

    def flush(self) -> None:
        """Append what waits, as far as the journal takes it."""
        while self._waiting and self._try(self._waiting[0][0]):
            self._size -= self._waiting.popleft()[1]

    def _try(self, record: Record) -> bool:
        try:
            self._journal.append(record)
        except OSError as exc:
            self.failure = exc
            return False
        self.failure = None
        return True
