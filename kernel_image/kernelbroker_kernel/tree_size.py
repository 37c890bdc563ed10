"""Measures the size of a workspace, while hostile code may change it. Both sides import it.

A walk opens only directories, each relative to the descriptor of its parent and without following links, so
that it cannot leave the workspace. The number of open descriptors is bounded at any depth. If a directory
is moved during the walk, the walk searches for it; if it cannot be found, the result is incomplete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are none of the directory's."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DESCRIPTORS = 32
"""The number of topmost directories that stay open, and of deepest ones."""
_BLOCK = 512  # the unit of st_blocks on every file system
_WALKS = 3
_SEARCHES = 20
"""How often a walk searches for a renamed entry."""


def measure(directory: Path, max_files: int) -> tuple[int, int, bool]:
    """Count bytes and inodes below a directory, without the directory itself, and whether this is all.

    The count ends after `max_files` and is then incomplete. A walk that missed something is repeated a few
    times. A directory that cannot be opened makes the result incomplete, except one of another user. A
    missing directory counts as empty.

    Raises:
        OSError: this process has no descriptor or memory left, which says nothing about the directory.
    """
    size = files = 0
    for _ in range(_WALKS):
        walk = _Walk(max_files)
        try:
            walk.run(directory)
        finally:
            walk.close()
        if walk.complete:
            return walk.size, walk.files, True
        size, files = max(size, walk.size), max(files, walk.files)
        if not walk.moved:  # another walk would have the same result
            break
    return size, files, False


@dataclass(slots=True)
class _Level:
    descriptor: int | None
    inode: int
    below: list[tuple[str, int]] = field(default_factory=list)
    """The names and inodes of the subdirectories that are still to be walked."""


class _Walk:
    """One walk through a directory.

    Attributes:
        complete: every entry was counted.
        moved: an entry was missed because it was renamed or removed.
    """

    def __init__(self, max_files: int) -> None:
        self.size = 0
        self.files = 0
        self.complete = True
        self.moved = False
        self._max_files = max_files
        self._searches = _SEARCHES
        self._counted: set[int] = set()
        self._levels: list[_Level] = []

    def run(self, directory: Path) -> None:
        try:
            top = os.open(directory, _OPEN)
        except OSError as error:
            _raise_shortage(error)
            self.complete = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
            return
        self._push(top)
        self._device = os.fstat(top).st_dev
        self._list()
        while self.files <= self._max_files:
            if self._levels[-1].below:
                self._enter(*self._levels[-1].below.pop())
            elif len(self._levels) == 1:
                return
            else:
                self._leave()
        self.complete = False

    def close(self) -> None:
        while self._levels:
            self._pop()

    def _top(self) -> int:
        descriptor = self._levels[-1].descriptor
        assert descriptor is not None
        return descriptor

    def _enter(self, name: str | None, inode: int) -> None:
        while name is not None:
            try:
                descriptor = _open_below(name, self._top())
            except PermissionError:
                return  # it belongs to another user, so code in the sandbox cannot write there
            except OSError as error:
                _raise_shortage(error)
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    self.complete = False
                    return
                name = self._find(inode)
            else:
                self._push(descriptor)
                self._list()
                return

    def _find(self, inode: int) -> str | None:
        """The new name of an entry of the current directory; None if it is gone."""
        self._searches -= 1
        if self._searches >= 0:
            with contextlib.suppress(OSError), os.scandir(self._top()) as entries:
                for entry in entries:
                    if entry.inode() == inode:
                        return entry.name
        self.complete, self.moved = False, True
        return None

    def _push(self, descriptor: int) -> None:
        self._levels.append(_Level(descriptor, os.fstat(descriptor).st_ino))
        far = len(self._levels) - 1 - _DESCRIPTORS
        if far >= _DESCRIPTORS and (middle := self._levels[far].descriptor) is not None:
            os.close(middle)
            self._levels[far].descriptor = None

    def _pop(self) -> None:
        descriptor = self._levels.pop().descriptor
        if descriptor is not None:
            os.close(descriptor)

    def _leave(self) -> None:
        """Return to the parent; if this directory was moved, to the nearest ancestor that is still open."""
        parent = self._levels[-2]
        if parent.descriptor is None:
            with contextlib.suppress(OSError):
                descriptor = os.open("..", _OPEN, dir_fd=self._top())
                if os.fstat(descriptor).st_ino == parent.inode:
                    parent.descriptor = descriptor
                else:
                    os.close(descriptor)
        self._pop()
        while self._levels[-1].descriptor is None:  # the topmost directories stay open
            self.complete, self.moved = False, True
            self._pop()

    def _list(self) -> None:
        level = self._levels[-1]
        try:
            with os.scandir(self._top()) as entries:
                for entry in entries:
                    self._count(entry, level)
                    if self.files > self._max_files:
                        return
        except OSError as error:
            _raise_shortage(error)
            self.complete = False

    def _count(self, entry: os.DirEntry[str], level: _Level) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._add(entry.name, entry.stat(follow_symlinks=False), level)
            return
        while (name := self._find(entry.inode())) is not None:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=self._top(), follow_symlinks=False)
                self._add(name, status, level)
                return

    def _add(self, name: str, status: os.stat_result, level: _Level) -> None:
        if status.st_dev != self._device:  # a mount, such as shared data
            return
        if status.st_ino in self._counted:  # a hard link, or an entry renamed during the listing
            return
        self._counted.add(status.st_ino)
        self.files += 1
        self.size += status.st_blocks * _BLOCK
        if stat.S_ISDIR(status.st_mode):
            level.below.append((name, status.st_ino))


def _raise_shortage(error: OSError) -> None:
    if error.errno in _SHORTAGES:
        raise error


def _open_below(name: str, parent: int) -> int:
    """Open a directory. If its owner, the broker's user, may not read it, add that permission first."""
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
