"""What a file browser shows of an entry: permissions, and where a link leads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from . import environment
from .contract import METADATA_PREFIX
from .workspace import MAX_ENTRIES, MAX_LISTED_CHARS

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory"}


class Detail(TypedDict):
    path: str
    kind: str
    size: int
    modified_at: float
    mode: int
    target: str | None
    metadata: dict[str, str]


class Details:
    """The entries below a directory down to a depth, by path; with depth 0 the entry itself.

    Run `read` to its end. Then `entries` has them in order, and `truncated` says whether there are more.
    Links are described, and not followed further down.
    """

    def __init__(self, names: list[str], depth: int) -> None:
        self.entries: list[Detail] = []
        self.truncated = False
        self._root = str(Path(environment.WORKSPACE, *names))
        self._shown = "/".join(names).removeprefix("/")
        self._depth = depth
        self._chars = 0

    def read(self) -> Iterator[None]:
        """Read in steps. Raises OSError if the path itself cannot be read."""
        if not self._depth:
            self._add(self._root, self._shown)
            return
        folders = [(self._root, self._shown, 1)]
        for number, (folder, shown, depth) in enumerate(folders):  # grows: breadth first
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        path = f"{shown}/{entry.name}" if shown else entry.name
                        with suppress(FileNotFoundError):  # removed meanwhile
                            if not self._add(entry.path, path):
                                return
                            if depth < self._depth and entry.is_dir(follow_symlinks=False):
                                folders.append((entry.path, path, depth + 1))
                        yield
            except OSError:  # removed meanwhile, or not readable
                if number == 0:
                    raise
        self.entries.sort(key=lambda entry: entry["path"])

    def _add(self, path: str, shown: str) -> bool:
        status = os.lstat(path)
        target = None
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
        if stat.S_ISLNK(status.st_mode):
            target, kind = os.path.realpath(path), "symlink"
            with suppress(OSError):
                kind = _KINDS.get(stat.S_IFMT(Path(path).stat().st_mode), "other")
        self._chars += len(shown)
        if len(self.entries) >= MAX_ENTRIES or self._chars > MAX_LISTED_CHARS:
            self.truncated = True
            return False
        self.entries.append(
            {
                "path": shown,
                "kind": kind,
                "size": status.st_size,
                "modified_at": status.st_mtime,
                "mode": status.st_mode,
                "target": target,
                "metadata": _metadata(path) if kind == "file" else {},
            }
        )
        return True


def _metadata(path: str) -> dict[str, str]:
    """The texts that are kept with a file, by key."""
    found = {}
    with suppress(OSError):  # removed meanwhile, not readable, or a file system without attributes
        for name in os.listxattr(path):
            if name.startswith(METADATA_PREFIX):
                value = os.getxattr(path, name).decode(errors="replace")
                found[name.removeprefix(METADATA_PREFIX)] = value
    return found
