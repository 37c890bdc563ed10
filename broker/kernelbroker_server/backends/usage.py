"""How much a workspace holds. Hostile code wrote it, and writes on while it is measured.

Each directory is opened from its parent's descriptor and only if it is no link, and nothing else is
opened at all: no name leads out. What is moved or removed meanwhile may be missed, and is seen the
next time. Any depth is walked with a bounded number of descriptors.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DESCRIPTORS = 64
_BLOCK = 512  # of st_blocks, whatever the file system's own are


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on the disk, and inodes; hard links count once."""

    size: int = 0
    files: int = 0


@dataclass(slots=True)
class _Level:
    descriptor: int | None
    inode: int
    below: list[str] = field(default_factory=list)


def measure(directory: Path, max_files: int) -> Usage:
    """What lies below a directory, without the directory itself; beyond `max_files` the count ends.

    Raises no OSError: what cannot be looked at counts for nothing.
    """
    walk = _Walk(max_files)
    try:
        walk.run(directory)
    except OSError:
        pass
    finally:
        walk.close()
    return Usage(walk.size, walk.files)


class _Walk:
    def __init__(self, max_files: int) -> None:
        self.size = 0
        self.files = 0
        self._max_files = max_files
        self._links: set[int] = set()
        self._levels: list[_Level] = []

    def run(self, directory: Path) -> None:
        self._enter(os.open(directory, _OPEN))
        self._device = os.fstat(self._top()).st_dev
        self._list()
        while self.files <= self._max_files:
            level = self._levels[-1]
            if level.below:
                name = level.below.pop()
                with contextlib.suppress(OSError):  # removed, or a link now
                    self._enter(_open_below(name, self._top()))
                    self._list()
            elif len(self._levels) == 1:
                return
            else:
                self._leave()

    def close(self) -> None:
        for level in self._levels:
            if level.descriptor is not None:
                os.close(level.descriptor)

    def _top(self) -> int:
        descriptor = self._levels[-1].descriptor
        assert descriptor is not None
        return descriptor

    def _enter(self, descriptor: int) -> None:
        self._levels.append(_Level(descriptor, os.fstat(descriptor).st_ino))
        if len(self._levels) > _DESCRIPTORS:
            far = self._levels[-_DESCRIPTORS - 1]
            if far.descriptor is not None:
                os.close(far.descriptor)
                far.descriptor = None

    def _leave(self) -> None:
        """Raises OSError if the directory has been moved, so that its parent is another one now."""
        left, parent = self._levels[-1], self._levels[-2]
        assert left.descriptor is not None
        if parent.descriptor is None:
            descriptor = os.open("..", _OPEN, dir_fd=left.descriptor)
            parent.descriptor = descriptor  # closed with the others
            if os.fstat(descriptor).st_ino != parent.inode:
                raise OSError("it was moved")
        os.close(left.descriptor)
        self._levels.pop()

    def _list(self) -> None:
        level = self._levels[-1]
        with os.scandir(self._top()) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if status.st_dev != self._device:  # nothing of the workspace's own
                    continue
                if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                    if status.st_ino in self._links:
                        continue
                    self._links.add(status.st_ino)
                self.files += 1
                self.size += status.st_blocks * _BLOCK
                if self.files > self._max_files:
                    return
                if stat.S_ISDIR(status.st_mode):
                    level.below.append(entry.name)


def _open_below(name: str, parent: int) -> int:
    """Also where the broker is no more than the directory's owner, and the owner may not read it."""
    try:
        return os.open(name, _OPEN, dir_fd=parent)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            Path(f"/proc/self/fd/{handle}").chmod(mode | 0o500)
        finally:
            os.close(handle)
        return os.open(name, _OPEN, dir_fd=parent)
