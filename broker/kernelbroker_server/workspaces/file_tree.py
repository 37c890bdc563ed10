"""Lists and deletes files of a workspace in the store, as the sandbox does it for those of a session.

`file_paths.py` keeps a path inside of the workspace. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from kernelbroker.protocol.errors import NotFound
from kernelbroker.protocol.messages import FileInfo, FileList

from .file_paths import components, directory, of_entry, opened_below, translated

MAX_ENTRIES = 10_000
MAX_LISTED_CHARS = 1024**2
"""The bound of all paths of a list together."""
MAX_DEPTH = 64
"""The greatest depth of a list."""
_Kind: TypeAlias = Literal["file", "directory", "symlink", "other"]
_KINDS: dict[int, _Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}


def list_files(root: Path, path: str, *, recursive: bool) -> FileList:
    """List a directory below `root`, sorted by path. Anything else gives its own entry."""
    names = components(path)
    with translated(path):
        if names:
            with directory(root, names[:-1]) as parent:
                status = os.lstat(names[-1], dir_fd=parent)
            if not stat.S_ISDIR(status.st_mode):
                return FileList(entries=[_info("/".join(names), status)])
        try:
            entries, truncated = _entries(root, names, recursive=recursive)
        except FileNotFoundError:
            if names:
                raise
            entries, truncated = [], False  # the workspace is empty
    return FileList(entries=sorted(entries, key=lambda each: each.path), truncated=truncated)


def _entries(root: Path, names: list[str], *, recursive: bool) -> tuple[list[FileInfo], bool]:
    found: list[FileInfo] = []
    truncated, chars = False, 0
    folders = [names]
    for number, folder in enumerate(folders):  # grows while it is read: breadth first
        try:
            for name, status in _scan(root, folder):
                path = [*folder, name]
                chars += len("/".join(path))
                if len(found) >= MAX_ENTRIES or chars > MAX_LISTED_CHARS:
                    return found, True
                found.append(_info("/".join(path), status))
                if recursive and stat.S_ISDIR(status.st_mode):
                    if len(path) - len(names) < MAX_DEPTH:
                        folders.append(path)
                    else:
                        truncated = True
        except OSError:  # removed meanwhile, or not readable
            if number == 0:
                raise
    return found, truncated


def _scan(root: Path, names: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    with directory(root, names) as parent:
        descriptor = opened_below(parent)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(descriptor)


def _info(path: str, status: os.stat_result) -> FileInfo:
    try:
        moment = datetime.fromtimestamp(status.st_mtime, UTC)
    except (OverflowError, ValueError, OSError):  # user code can set any time
        moment = datetime.fromtimestamp(0, UTC)
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    return FileInfo(path=path, kind=kind, size=status.st_size, modified_at=moment)


def delete(root: Path, path: str, *, recursive: bool) -> None:
    """Delete a file, a link, an empty directory, or with `recursive` any directory below `root`."""
    *parents, name = of_entry(path)
    with translated(path):
        try:
            with directory(root, parents) as parent:
                if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                    os.unlink(name, dir_fd=parent)
                    return
                if recursive:
                    _empty(parent, name)
                os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            raise NotFound(f"there is no file {path}") from None


def _empty(parent: int, name: str) -> None:
    """Remove the content of a directory, at any depth, with two open descriptors at a time."""
    current = opened_below(parent, name)
    above: list[tuple[str, os.stat_result]] = []
    try:
        while True:
            child = _empty_of_files(current)
            if child is not None:
                below = opened_below(current, child)
                above.append((child, os.fstat(current)))
            elif above:
                child, expected = above.pop()
                below = opened_below(current, "..")
                if not os.path.samestat(os.fstat(below), expected):  # an application moved it
                    os.close(below)
                    raise OSError(errno.EBUSY, "moved meanwhile")
                os.rmdir(child, dir_fd=below)
            else:
                return
            os.close(current)
            current = below
    finally:
        os.close(current)


def _empty_of_files(descriptor: int) -> str | None:
    """Remove the entries of a directory, up to the first subdirectory, whose name is returned."""
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            os.unlink(entry.name, dir_fd=descriptor)
    return None
