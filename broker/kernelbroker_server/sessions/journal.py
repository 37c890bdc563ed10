"""The journal: what the store has taken and the database may not have yet.

The event loop appends each change with one write before anybody sees it. The data is then in the page
cache of the operating system, where it survives the death of the broker. It is not flushed to the disk, so
a power cut may lose it. A thread copies the journal into the database and removes the segments that it has
copied.

A segment is a file: its head, then frames. A frame is the length and the CRC-32 of a record, and then the
record. The name and the head of a segment have the serial number of its first record. Serial numbers are
never used again.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from .records import Record, decode_record, encode_record

logger = logging.getLogger(__name__)

VERSION = 1
_MAGIC = b"KBJ"
_HEAD = struct.Struct("<3sBQ")
_FRAME = struct.Struct("<II")
_READ_BYTES = 1024**2
_BATCH_BYTES = 4 * 1024**2
"""Of records that are decoded at once."""
_MAX_RECORD = 1024**3
_PREFIX = "journal-"


class Damaged(Exception):
    """A segment holds what this version has not written. What stands before it was read."""


@dataclass(slots=True)
class Segment:
    """A file of the journal.

    Attributes:
        first: the serial number of its first record.
        size: bytes that are completely written.
    """

    path: Path
    first: int
    size: int


class Journal:
    """Appends records. The event loop calls all methods except `remove_first`.

    Args:
        serial: the serial number of the next record.
        segment_bytes: a segment that is larger is closed.
        max_backlog: bytes of all segments. More is refused, until the database has some of it.

    Attributes:
        segments: the oldest first. Records are appended to the last one.
    """

    def __init__(
        self,
        directory: Path,
        serial: int,
        *,
        segment_bytes: int = 16 * 1024**2,
        max_backlog: int = 256 * 1024**2,
    ) -> None:
        self.segments: deque[Segment] = deque()
        self._directory = directory
        self._serial = serial
        self._segment_bytes = segment_bytes
        self._max_backlog = max_backlog
        self._written = 0
        self._removed = 0
        self._fd = -1

    def append(self, record: Record) -> None:
        """Append a record: it survives this process from now on.

        Raises:
            OSError: it is not stored, for example because the disk is full.
        """
        payload = encode_record(record)
        frame = _FRAME.pack(len(payload), crc32(payload)) + payload
        if self._written - self._removed > self._max_backlog:
            raise OSError(None, "the database does not keep up with the journal")
        if self._fd < 0 or self.segments[-1].size >= self._segment_bytes:
            self._begin_segment()
        segment = self.segments[-1]
        try:
            written = os.write(self._fd, frame)
        except OSError:
            self._cut(segment)
            raise
        if written < len(frame):
            self._cut(segment)
            raise OSError(None, "the disk is full")
        segment.size += written
        self._written += written
        self._serial += 1

    def remove_first(self) -> None:
        """Remove the oldest segment, which is in the database and not the last one.

        Called by the thread that copies. Raises OSError.
        """
        self.segments[0].path.unlink(missing_ok=True)
        self._removed += self.segments.popleft().size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin_segment(self) -> None:
        self.close()
        path = self._directory / f"{_PREFIX}{self._serial:016d}"
        head = _HEAD.pack(_MAGIC, VERSION, self._serial)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            if os.write(fd, head) < len(head):
                raise OSError(None, "the disk is full")
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._written += len(head)
        self.segments.append(Segment(path, self._serial, len(head)))

    def _cut(self, segment: Segment) -> None:
        """Remove an incomplete frame. If that fails, the next record begins a new segment."""
        try:
            os.ftruncate(self._fd, segment.size)
        except OSError:
            self.close()


class SegmentReader:
    """Reads the records of a segment, from its beginning, while it grows."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0
        self.serial = segment.first - 1
        """Of the last record that was read."""

    @property
    def at_end(self) -> bool:
        return self._offset >= self._segment.size

    def batch(self) -> list[Record]:
        """Return the next records. If it is empty, none are left, or the next one is not complete.

        Raises:
            Damaged
        """
        begin, end = self._offset, self._segment.size
        records: list[Record] = []
        if begin == 0 and not self._read_head():
            return []
        while self._offset < end and self._offset - begin < _BATCH_BYTES:
            data = os.pread(self._fd, min(_READ_BYTES, end - self._offset), self._offset)
            read, used, fault = _parse(data)
            if not used and fault is None and len(data) >= _FRAME.size:
                length = _FRAME.size + _FRAME.unpack_from(data)[0]
                if len(data) < length <= end - self._offset:  # longer than what was read at once
                    read, used, fault = _parse(os.pread(self._fd, length, self._offset))
            if fault is not None and not used and not records:
                raise Damaged(fault)
            if not used:
                break
            records += read
            self._offset += used
        self.serial += len(records)
        return records

    def close(self) -> None:
        os.close(self._fd)

    def _read_head(self) -> bool:
        """Read the head. Returns whether it is complete: a broker may die while it begins a segment."""
        head = os.pread(self._fd, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return False
        magic, version, first = _HEAD.unpack(head)
        if (magic, version, first) != (_MAGIC, VERSION, self._segment.first):
            raise Damaged("its head is not one of this version")
        self._offset = _HEAD.size
        return True


def _parse(data: bytes) -> tuple[list[Record], int, str | None]:
    """Return the records of the complete frames, their bytes, and what is wrong with the next frame."""
    view, offset = memoryview(data), 0
    records: list[Record] = []
    while offset + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, offset)
        if not 0 < length <= _MAX_RECORD:
            return records, offset, "the length of a record is wrong"
        end = offset + _FRAME.size + length
        if end > len(data):
            break
        payload = view[offset + _FRAME.size : end]
        if crc32(payload) != checksum:
            return records, offset, "the checksum of a record is wrong"
        try:
            records.append(decode_record(payload))
        except msgspec.DecodeError as exc:
            return records, offset, f"a record is not one of this version: {exc}"
        offset = end
    return records, offset, None


def left_segments(directory: Path) -> list[Segment]:
    """The segments that an earlier broker has left, oldest first. Raises OSError."""
    found = []
    for path in directory.glob(f"{_PREFIX}*"):
        serial = path.name.removeprefix(_PREFIX)
        if serial.isdigit():
            found.append(Segment(path, int(serial), path.stat().st_size))
    return sorted(found, key=lambda segment: segment.first)
