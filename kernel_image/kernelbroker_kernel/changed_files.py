"""The workspace files that an execution created or changed.

The workspace is scanned before and after, and compared by modification time and size. Links are not
followed, and only regular files count. The scan is bounded, so that it takes a few milliseconds at
most; where files are left out, the answer is marked as truncated. Removed files are not reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import scandir
from time import time_ns
from typing import NamedTuple, TypedDict

from .contract import CHECKPOINTS, PACKAGES

MAX_ENTRIES = 1_000
MAX_DEPTH = 8
MAX_REPORTED = 200
PASSED_OVER = frozenset({"shared", PACKAGES, CHECKPOINTS})
"""Directories at the top of the workspace that are not scanned: they are not the user's own files."""
CLOCK_SLACK_NS = 20_000_000
"""File times are taken from a clock that ticks every 1 to 10 ms, and so may lie before ours."""


class FileState(NamedTuple):
    modified_ns: int
    size: int
    changed_ns: int
    """The last change of the file's name, content or permissions. Programs cannot set it back."""


class FileChange(TypedDict):
    path: str
    size: int
    created: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace at one moment, by path. `truncated`: some files were not scanned."""

    files: dict[str, FileState]
    truncated: bool
    taken_ns: int


def scan(root: str) -> Snapshot:
    """Scan the files under `root`, those near the top first."""
    taken_ns = time_ns()
    files: dict[str, FileState] = {}
    folders = [""]
    seen = 0
    truncated = False
    for folder in folders:  # grows while it is read: breadth first
        try:
            with scandir(f"{root}/{folder}") as entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        return Snapshot(files, True, taken_ns)
                    path = folder + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if path.count("/") + 1 >= MAX_DEPTH:
                            truncated = True
                        elif path not in PASSED_OVER:
                            folders.append(f"{path}/")
                    elif entry.is_file(follow_symlinks=False):
                        stat = entry.stat(follow_symlinks=False)
                        state = FileState(stat.st_mtime_ns, stat.st_size, stat.st_ctime_ns)
                        files[path] = state
        except OSError:  # removed meanwhile, or not readable
            continue
    return Snapshot(files, truncated, taken_ns)


def changes(before: Snapshot, after: Snapshot) -> tuple[list[FileChange], bool]:
    """The files that are new or changed in `after`, by path, and whether there may be more."""
    found: list[FileChange] = []
    for path, state in after.files.items():
        known = before.files.get(path)
        if known is None:
            # Either new, or left out by a first scan that was truncated.
            new = not before.truncated or state.changed_ns >= before.taken_ns - CLOCK_SLACK_NS
        else:
            new = known[:2] != state[:2]
        if new:
            found.append({"path": path, "size": state.size, "created": known is None})
    found.sort(key=lambda change: change["path"])
    truncated = before.truncated or after.truncated or len(found) > MAX_REPORTED
    return found[:MAX_REPORTED], truncated
