"""Reads and writes single files of a workspace in the store. `file_paths.py` keeps a path inside of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from ..cancellation import run_to_completion
from . import file_paths
from .file_paths import directory, of_entry, translated

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Without O_NONBLOCK opening a named pipe could block forever."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o666
"""See the mode of directories in `file_paths.py`."""


class OpenFile:
    """A regular file. It can be read after a session has got the workspace.

    Attributes:
        size: in bytes, when it was opened.
    """

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor

    async def chunks(self, start: int, size: int) -> AsyncIterator[bytes]:
        """At most `size` bytes from `start`; fewer if the file has become shorter."""
        end = start + size
        while start < end:
            room = min(_CHUNK, end - start)
            chunk = await _in_thread(os.pread, self._descriptor, room, start)
            if not chunk:
                return
            start += len(chunk)
            yield chunk

    def close(self) -> None:
        os.close(self._descriptor)


def open_file(root: Path, path: str) -> OpenFile:
    """Open a file below `root`; blocks. Raises as `StoredFiles.open`."""
    *parents, name = of_entry(path)
    with translated(path):
        with directory(root, parents) as parent:
            descriptor = os.open(name, _READ, dir_fd=parent)
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            os.close(descriptor)
            raise OSError(errno.EISDIR if kind == stat.S_IFDIR else errno.ENXIO, "no regular file")
    return OpenFile(descriptor)


async def write(
    root: Path,
    path: str,
    data: AsyncIterable[bytes],
    reserve: Callable[[int, int], Awaitable[None]],
    *,
    replace: bool = True,
) -> None:
    """Create or replace a file below `root`.

    Args:
        reserve: called with the bytes and the inodes that follow. Raises TooLarge.
        replace: if not, an existing file stays as it is.

    Raises as `StoredFiles.write`, and OSError.
    """
    names = of_entry(path)
    making = asyncio.ensure_future(_in_thread(_make_parents, root, names[:-1], path))
    try:
        parent = await run_to_completion(making)
    except asyncio.CancelledError:
        if not making.cancelled() and making.exception() is None:
            os.close(making.result())
        raise
    unfinished = f".{secrets.token_hex(8)}"
    try:
        await _in_thread(_check_target, parent, names[-1], path)
        await reserve(0, 1)
        file = os.open(unfinished, _WRITE, 0o600, dir_fd=parent)
        try:
            async for chunk in data:
                await reserve(len(chunk), 0)
                with translated(path):
                    await _in_thread(_write_all, file, chunk)
            os.fchmod(file, _FILE_MODE)
        finally:
            os.close(file)
        with translated(path):
            _give_name(parent, unfinished, names[-1], replace=replace)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=parent)
        raise
    finally:
        os.close(parent)


def make_directory(root: Path, path: str) -> None:
    """Make a directory below `root`, and its parents; blocks. Raises as `StoredFiles.write`."""
    with translated(path), directory(root, file_paths.components(path), make=True):
        pass


def exists(root: Path, path: str) -> bool:
    """Whether there is anything at a path below `root`, and no link is on the way to it; blocks."""
    *parents, name = of_entry(path)
    with contextlib.suppress(OSError), directory(root, parents) as parent:
        os.lstat(name, dir_fd=parent)
        return True
    return False


async def _in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work to its end: a descriptor must not be closed while a thread uses it."""
    return await run_to_completion(asyncio.to_thread(work, *args, **kwargs))


def _make_parents(root: Path, parents: list[str], path: str) -> int:
    with translated(path), directory(root, parents, make=True) as parent:
        return os.dup(parent)


def _check_target(parent: int, name: str, path: str) -> None:
    """Refuse a path that cannot become a file before anything is written."""
    with translated(path), contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            raise OSError(errno.EISDIR, "a directory")


def _give_name(parent: int, unfinished: str, name: str, *, replace: bool) -> None:
    if replace:
        os.rename(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
        return
    with contextlib.suppress(FileExistsError):
        os.link(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    os.unlink(unfinished, dir_fd=parent)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
