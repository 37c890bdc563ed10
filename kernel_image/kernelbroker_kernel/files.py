"""Which workspace files an execution created or changed.

The workspace is looked at before and after, by modification time and size. Links are not followed
and only regular files count. The look is bounded, so that a workspace of any size costs the same few
milliseconds at most; what lies beyond the bounds is not seen, and the answer says so. It does not
tell which files were removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import scandir
from time import time_ns
from typing import NamedTuple, TypedDict

from .contract import PACKAGES

MAX_ENTRIES = 1_000
MAX_DEPTH = 8
MAX_REPORTED = 200
PASSED_OVER = frozenset({"shared", PACKAGES})
"""Folders at the top of the workspace: what belongs to all sessions, and what was installed."""
CLOCK_SLACK_NS = 20_000_000
"""File times are taken from a clock that ticks every 1 to 10 ms, and so may lie before ours."""


class FileState(NamedTuple):
    modified_ns: int
    size: int
    changed_ns: int
    """When the file last got its name, content or rights; no program can set it back."""


class FileChange(TypedDict):
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace at one moment, by path; `truncated` where some were not looked at."""

    files: dict[str, FileState]
    truncated: bool
    taken_ns: int


def scan(root: str) -> Snapshot:
    """Look at the files under `root`, those near the top first."""
    taken_ns = time_ns()
    files: dict[str, FileState] = {}
    folders = [""]
    seen = 0
    truncated = False
    for folder in folders:  # grows on the way: breadth first
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
        except OSError:  # removed meanwhile, or not ours to read
            continue
    return Snapshot(files, truncated, taken_ns)


def changes(before: Snapshot, after: Snapshot) -> tuple[list[FileChange], bool]:
    """The files that are new or changed in `after`, by path, and whether there may be more."""
    found: list[FileChange] = []
    for path, state in after.files.items():
        known = before.files.get(path)
        if known is None:
            # Either new, or passed over by a first look that did not see everything.
            new = not before.truncated or state.changed_ns >= before.taken_ns - CLOCK_SLACK_NS
        else:
            new = known[:2] != state[:2]
        if new:
            found.append({"path": path, "size": state.size})
    found.sort(key=lambda change: change["path"])
    truncated = before.truncated or after.truncated or len(found) > MAX_REPORTED
    return found[:MAX_REPORTED], truncated
