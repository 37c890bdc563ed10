"""The workspace files that an execution created or changed.

What a kernel knows of the workspace is kept from cell to cell, so a file that a background process makes
between two cells belongs to the next one. A small workspace is scanned after each cell. In a larger one the
system reports what changes (inotify), so that a cell costs as much as it changed; where it cannot, the
workspace is scanned. Links are not followed, and only regular files count. Removed files are not reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import ENOMEM, ENOSPC
from stat import S_ISREG
from time import time_ns
from typing import NamedTuple, TypedDict

from . import inotify
from .contract import CHECKPOINTS, PACKAGES
from .inotify import CREATE, IGNORED, ISDIR, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify

MAX_ENTRIES = 100_000
"""Of one scan; what lies deeper is left out."""
WATCHED_FROM = 500
"""Entries above which the system is asked for reports. It has few queues: often 128 for all sandboxes."""
MAX_REPORTS = 10_000
"""Above these, a scan is quicker."""
MAX_REPORTED = 200
PASSED_OVER = frozenset({"shared", PACKAGES, CHECKPOINTS})
"""Directories at the top of the workspace that are not scanned: they are not the user's own files."""
CLOCK_SLACK_NS = 20_000_000
"""File times are taken from a clock that ticks every 1 to 10 ms, and so may lie before ours."""
_WATCHED = (
    inotify.MODIFY
    | inotify.CLOSE_WRITE
    | inotify.ATTRIB
    | inotify.CREATE
    | inotify.DELETE
    | inotify.MOVED_FROM
    | inotify.MOVED_TO
)


class FileState(NamedTuple):
    modified_ns: int
    size: int
    inode: int
    changed_ns: int
    """The last change of its content, names or rights. Programs set `modified_ns` back, but never this."""
    rights: tuple[int, int, int, int]
    """Mode, owner, group and number of names. Who changes these has changed none of the content."""

    @classmethod
    def of(cls, stat: os.stat_result) -> FileState:
        rights = (stat.st_mode, stat.st_uid, stat.st_gid, stat.st_nlink)
        return cls(stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_ctime_ns, rights)

    def differs_from(self, earlier: FileState) -> bool:
        if self[:3] != earlier[:3]:
            return True
        return self.changed_ns != earlier.changed_ns and self.rights == earlier.rights


class FileChange(TypedDict):
    path: str
    size: int
    created: bool


class Found(NamedTuple):
    """A new or changed file, for choosing among many."""

    path: str
    state: FileState
    created: bool


class Scan(NamedTuple):
    """The files below a directory, by path, and the number of all entries. `truncated`: there are more."""

    files: dict[str, FileState]
    entries: int
    truncated: bool
    taken_ns: int


class WorkspaceChanges:
    """What changes in the workspace at `root`, from one look to the next."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._last: Scan | None = None
        self._reports: _Reports | None = None
        self._may_watch = True
        self._recent: list[str] = []
        """Changed by the last cells. A file that is mapped into memory changes without a report."""

    def begin(self, *, known: bool = False, watch: bool = True) -> None:
        """A cell begins.

        Args:
            known: since the last cell, only the sandbox's own code has changed files.
            watch: the system may be asked for reports. A process that has a queue of these cannot be saved.
        """
        if not watch:
            self._stop_watching()
        if not known or self._last is None:
            self._look()

    def end(self) -> tuple[list[FileChange], bool]:
        """The files that are new or changed, by path, and whether there may be more.

        Of too many, those near the top are chosen, and of these the newest.
        """
        found = self._look()
        truncated = len(found) > MAX_REPORTED or (self._last is not None and self._last.truncated)
        found.sort(key=lambda each: (each.path.count("/"), -each.state.changed_ns))
        del found[MAX_REPORTED:]
        recent = dict.fromkeys([*(each.path for each in found), *self._recent])
        self._recent = list(recent)[:MAX_REPORTED]
        return [
            {"path": path, "size": state.size, "created": created}
            for path, state, created in sorted(found)
        ], truncated

    def _look(self) -> list[Found]:
        """What has changed since the last look; nothing at the first one."""
        last = self._last
        if last is not None and (paths := self._reported()) is not None:
            return _examine(self._root, last.files, paths)
        self._last = scanned = self._scan()
        if last is None:
            return []
        found = []
        for path, state in scanned.files.items():
            known = last.files.get(path)
            if known is None:
                # Either new, or left out by a scan that was truncated.
                changed = not last.truncated or state.changed_ns >= last.taken_ns - CLOCK_SLACK_NS
            else:
                changed = state.differs_from(known)
            if changed:
                found.append(Found(path, state, known is None))
        return found

    def _scan(self) -> Scan:
        scanned = scan(self._root)
        if not self._may_watch or scanned.entries <= WATCHED_FROM or scanned.truncated:
            return scanned
        try:
            self._reports = _Reports(self._root)
            return scan(self._root, self._reports.add)  # what changes from now on is reported
        except OSError:  # the system has no more queues or watches
            self._stop_watching()
            return scanned

    def _reported(self) -> set[str] | None:
        """The files that the system has reported; None if another scan is needed."""
        if self._reports is None:
            return None
        try:
            if (paths := self._reports.read()) is not None:
                return paths.union(self._recent)
        except OSError:  # its descriptor was closed by a user's code
            pass
        self._reports.close()
        self._reports = None
        return None

    def _stop_watching(self) -> None:
        self._may_watch = False
        if self._reports is not None:
            self._reports.close()
            self._reports = None


class _Reports:
    """The files below a directory that the system reports as changed.

    Raises:
        OSError: it has no more queues.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._inotify = Inotify()
        self._folders: dict[int, str] = {}

    def add(self, folder: str) -> None:
        """Watch a directory, by its path, which is empty or ends with a slash."""
        try:
            number = self._inotify.add(f"{self._root}/{folder}", _WATCHED)
        except OSError as error:
            if error.errno in (ENOSPC, ENOMEM):
                raise
        else:  # else it was removed meanwhile, or cannot be read
            self._folders[number] = folder

    def read(self) -> set[str] | None:
        """What was reported since the last time; None if a scan is quicker, or if reports were lost."""
        paths: set[str] = set()
        count = 0
        while reports := self._inotify.read():
            count += len(reports)
            if count > MAX_REPORTS:
                return None
            for report in reports:
                if report.mask & IGNORED:
                    self._folders.pop(report.watch, None)
                    continue
                path = self._folders.get(report.watch, "") + report.name
                if report.mask & OVERFLOW:
                    return None
                if not report.mask & ISDIR:
                    paths.add(path)
                elif report.mask & MOVED_FROM:
                    return None  # the files below it have other paths now
                elif report.mask & (CREATE | MOVED_TO) and path not in PASSED_OVER:
                    below = scan(self._root, self.add, f"{path}/")
                    if below.truncated:
                        return None
                    paths.update(below.files)
                    count += below.entries
        return paths

    def close(self) -> None:
        self._inotify.close()


def _examine(root: str, files: dict[str, FileState], paths: set[str]) -> list[Found]:
    """What has changed of these files, which are compared with `files`; that is brought up to date."""
    found = []
    for path in paths:
        known = files.pop(path, None)
        try:
            stat = os.lstat(f"{root}/{path}")
        except OSError:  # removed, or not readable
            continue
        if not S_ISREG(stat.st_mode):
            continue
        files[path] = state = FileState.of(stat)
        if known is None or state.differs_from(known):
            found.append(Found(path, state, known is None))
    return found


def scan(root: str, visit: Callable[[str], None] = lambda _: None, top: str = "") -> Scan:
    """Look at the files below a directory of `root`, those near the top first.

    Args:
        visit: called with the path of each directory before it is read; it ends with a slash.
        top: the directory's path, which is empty or ends with a slash.
    """
    taken_ns = time_ns()
    files: dict[str, FileState] = {}
    folders = [top]
    seen = 0
    for folder in folders:  # grows while it is read: breadth first
        visit(folder)
        try:
            with os.scandir(f"{root}/{folder}") as entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        return Scan(files, seen, True, taken_ns)
                    path = folder + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if path not in PASSED_OVER:
                            folders.append(f"{path}/")
                    elif entry.is_file(follow_symlinks=False):
                        files[path] = FileState.of(entry.stat(follow_symlinks=False))
        except OSError:  # removed meanwhile, or not readable, or its path is too long
            continue
    return Scan(files, seen, False, taken_ns)
