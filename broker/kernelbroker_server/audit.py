"""The audit log: what happened, one JSON object a line, appended to a file.

Each record has `time` (UTC, ISO 8601) and `event`, and the facts that the event names. It may hold
names and addresses, never code, output, tokens or values of environment variables. A record is one
write to a file opened for appending, so that several brokers can share one, and a file that was
moved away (logrotate) is opened anew. Writing never fails for who records: what keeps it from being
written is told in the broker's own log, once.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)


class Audit:
    """Records to the file at `path`, or nowhere if that is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._fd = -1
        self._torn = False
        self._told = False

    def open(self) -> None:
        """Make sure that it can be written to, if there is a file at all. Raises OSError."""
        if self._path is not None:
            self._fd_of(self._path)

    def close(self) -> None:
        """Records that come later open the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def record(self, event: str, **facts: object) -> None:
        """Append a record. Never raises; facts are JSON values, others become text."""
        if self._path is None:
            return
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        # As ASCII: a record is one line, whatever a fact holds.
        line = json.dumps(record | facts, default=str).encode() + b"\n"
        try:
            self._append(self._fd_of(self._path), line)
        except OSError as error:
            if not self._told:
                log.error("The audit log %s cannot be written: %s", self._path, error.strerror)
            self._told = True
        else:
            self._told = False

    def _append(self, fd: int, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        written = os.write(fd, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(None, "the disk is full, or the file at its limit")

    def _fd_of(self, path: Path) -> int:
        """The open file, which is the one that has this name now."""
        if self._fd >= 0:
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(self._fd)):
                    return self._fd
            self.close()
            self._torn = False
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        return self._fd
