"""The audit log: one JSON object for each line, appended to a file.

Each record has `time` (UTC, ISO 8601), `event`, and fields that depend on the event. Records may contain
names and addresses, but never code, output, tokens or values of environment variables.

Each record is one write to a file opened for appending, so several brokers can share the file. If the file
is moved away (logrotate), the next record creates a new one. An error of writing is not raised to the
caller; it is logged once, until writing succeeds again.
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
    """Writes records.

    Args:
        path: of the file; None to drop all records.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._fd = -1
        self._incomplete_line = False
        self._error_logged = False

    def open(self) -> None:
        """Check that the file can be opened for writing. Raises OSError."""
        if self._path is not None:
            self._fd_of(self._path)

    def close(self) -> None:
        """Close the file. A later record opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def record(self, event: str, **fields: object) -> None:
        """Append a record. Never raises.

        Args:
            fields: JSON values; other values are written as text.
        """
        if self._path is None:
            return
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        # json.dumps escapes line ends and non-ASCII characters, so a record is always one line.
        line = json.dumps(record | fields, default=str).encode() + b"\n"
        try:
            self._append(self._fd_of(self._path), line)
        except OSError as error:
            if not self._error_logged:
                log.error(
                    "the audit log %s cannot be written, and records are lost until it can: %s",
                    self._path,
                    error.strerror,
                )
            self._error_logged = True
        else:
            self._error_logged = False

    def _append(self, fd: int, line: bytes) -> None:
        data = b"\n" + line if self._incomplete_line else line
        written = os.write(fd, data)
        self._incomplete_line = written < len(data)
        if self._incomplete_line:
            raise OSError(None, "the disk is full, or the file has reached its size limit")

    def _fd_of(self, path: Path) -> int:
        """The descriptor of the file that has this name now; opens it if necessary."""
        if self._fd >= 0:
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(self._fd)):
                    return self._fd
            self.close()
            self._incomplete_line = False
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        return self._fd
