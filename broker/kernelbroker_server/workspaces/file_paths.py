"""Paths of files in a workspace of the store. User code may have planted links. Everything here blocks.

Each directory of a path is opened relative to the descriptor of its parent, without following links. A path
therefore cannot lead out of the workspace. The rules are those of the sandbox, which serves the files of
workspaces that a session has.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, RequestError, TooLarge

MAX_PATH_BYTES = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Opens a directory on the way to an entry, and never follows a link."""
_DIRECTORY_MODE = 0o777
"""The sandbox's user is not the broker's, and may change the files. No other user can: the directories
above the workspace are private."""
_REASONS: dict[int, tuple[type[RequestError], str]] = {
    errno.ENOENT: (NotFound, "there is no file {path}"),
    errno.ENOTDIR: (
        Conflict,
        "{path} has a parent that is not a directory; links are not followed",
    ),
    errno.ELOOP: (Conflict, "{path} is a symbolic link, and links are not followed"),
    errno.EISDIR: (Conflict, "{path} is a directory"),
    errno.EEXIST: (Conflict, "{path} exists already, and is no directory"),
    errno.ENOTEMPTY: (Conflict, "{path} is not empty; pass recursive=true to delete it"),
    errno.EACCES: (Conflict, "the permissions of {path} do not allow it; a cell can chmod it"),
    errno.EPERM: (Conflict, "the permissions of {path} do not allow it; a cell can chmod it"),
    errno.EBUSY: (Conflict, "{path} is in use"),
    errno.ENXIO: (Conflict, "{path} is not a regular file"),
    errno.ENAMETOOLONG: (BadRequest, "the path, or a name in it, is too long"),
    errno.ENOSPC: (TooLarge, "there is no space left on the broker's disk"),
    errno.EDQUOT: (TooLarge, "there is no space left on the broker's disk"),
}


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate errors of the system that a client's path causes. Other ones pass."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _REASONS:
            raise
        kind, message = _REASONS[exc.errno]
        raise kind(message.format(path=path)) from exc


def components(path: str) -> list[str]:
    """The components of a path; none for the workspace itself. Raises BadRequest."""
    if "\0" in path:
        raise BadRequest("a path has no NUL in it")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise BadRequest("the path has a lone surrogate that is not an escaped byte") from None
    if size > MAX_PATH_BYTES:
        raise BadRequest(f"a path has at most {MAX_PATH_BYTES:,} bytes")
    if path.startswith("/"):
        raise BadRequest("give the path relative to the workspace, without a leading slash")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise BadRequest("a path has no '..' in it")
    return names


def of_entry(path: str) -> list[str]:
    """The components of a path of something in the workspace. Raises BadRequest."""
    if not (names := components(path)):
        raise BadRequest("this is the workspace itself; name something in it")
    return names


@contextlib.contextmanager
def directory(root: Path, names: list[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of a directory, for opening entries relative to it. Raises OSError.

    Args:
        make: make it and its parents.
    """
    if make:
        root.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(root, STEP)
    try:
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
                    _open_to_all(name, descriptor)
            below = os.open(name, STEP, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def opened_below(parent: int, name: str = ".") -> int:
    """A descriptor of a directory, for reading its entries. Raises OSError."""
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _open_to_all(name: str, parent: int) -> None:
    """Change the mode of a directory that has just been made, whatever the umask is."""
    descriptor = opened_below(parent, name)
    try:
        os.fchmod(descriptor, _DIRECTORY_MODE)
    finally:
        os.close(descriptor)
