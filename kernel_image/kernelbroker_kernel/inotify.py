"""The system's reports of changes in directories (Linux' inotify), without threads and without waiting."""

from __future__ import annotations

import ctypes
import errno
import os
from struct import Struct
from typing import NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO = 0x2, 0x4, 0x8, 0x40, 0x80
CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x100, 0x200, 0x400, 0x800
OVERFLOW, IGNORED, ISDIR = 0x4000, 0x8000, 0x40000000
_ONLYDIR = 0x01000000
_READ_BYTES = 64 * 1024
_EVENT = Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class Report(NamedTuple):
    """One event.

    Attributes:
        watch: the number of the directory's watch.
        mask: flags, such as CREATE and ISDIR.
        cookie: joins the two halves of a rename.
        name: of the entry in the directory; empty for the directory itself.
    """

    watch: int
    mask: int
    cookie: int
    name: str


class Inotify:
    """One queue of reports. Raises OSError if the system has no more of them."""

    def __init__(self) -> None:
        self.descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            _raise_error()
        self._identity = _identity(self.descriptor)

    @property
    def is_open(self) -> bool:
        """Whether the descriptor is still this one's; code of a user may have closed it."""
        try:
            return _identity(self.descriptor) == self._identity
        except OSError:
            return False

    def add(self, path: str | os.PathLike[str], mask: int) -> int:
        """Watch a directory; returns the number of its watch. Raises OSError."""
        number: int = _libc.inotify_add_watch(self.descriptor, os.fsencode(path), mask | _ONLYDIR)
        if number < 0:
            _raise_error()
        return number

    def read(self) -> list[Report]:
        """What has been reported, up to 64 KiB of it; empty if nothing was. Raises OSError."""
        if not self.is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        reports, offset = [], 0
        while offset < len(data):
            watch, mask, cookie, size = _EVENT.unpack_from(data, offset)
            name = os.fsdecode(data[offset + _EVENT.size :][:size].rstrip(b"\0"))
            offset += _EVENT.size + size
            reports.append(Report(watch, mask, cookie, name))
        return reports

    def close(self) -> None:
        if self.is_open:
            os.close(self.descriptor)


def _identity(descriptor: int) -> tuple[int, int, int]:
    stat = os.fstat(descriptor)
    return stat.st_mode, stat.st_dev, stat.st_ino


def _raise_error() -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))
