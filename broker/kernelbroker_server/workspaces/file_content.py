"""Reads and writes single files of a workspace in the store. User code may have planted links.

Each directory of a path is opened relative to the descriptor of its parent, without following links, and
only regular files are read. A path therefore cannot lead out of the workspace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, TooLarge

from ..backends.base import Usage
from .quota import Quota

_CHUNK = 1024 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE, _DIRECTORY_MODE = 0o666, 0o777
"""The sandbox's user is not the broker's, and may change the files. No other user can: the directories
above the workspace are private."""


async def read(root: Path, path: str) -> AsyncIterator[bytes]:
    """The content of a file below `root`. Raises as `WorkspaceStore.read`."""
    file = await asyncio.to_thread(_open_file, root, path)
    try:
        while chunk := await asyncio.to_thread(os.read, file, _CHUNK):
            yield chunk
    finally:
        os.close(file)


async def write(
    root: Path, path: str, data: AsyncIterable[bytes], quota: Quota, held: Usage
) -> None:
    """Create or replace a file below `root`.

    Args:
        held: the usage of the workspace before.

    Raises as `WorkspaceStore.write`, and OSError.
    """
    directory, name = await asyncio.to_thread(_make_parents, root, path)
    unfinished, size = f".{secrets.token_hex(8)}", 0
    try:
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        try:
            async for chunk in data:
                size += len(chunk)
                if (refusal := quota.refusal(held, Usage(size, 1))) is not None:
                    raise TooLarge(refusal)
                await asyncio.to_thread(_write_all, file, chunk)
            os.fchmod(file, _FILE_MODE)
        finally:
            os.close(file)
        try:
            os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
        except IsADirectoryError:
            raise Conflict(f"{path} is a directory") from None
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=directory)
        raise
    finally:
        os.close(directory)


def _open_file(root: Path, path: str) -> int:
    *parents, name = _parts(path)
    directory = _open_directory(root, parents, path)
    try:
        # Without O_NONBLOCK opening a named pipe could block forever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError:
        raise Conflict(f"{path} is not a file that can be read") from None
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Conflict(f"{path} is not a file")
    return file


def _make_parents(root: Path, path: str) -> tuple[int, str]:
    """Make the parent directories; returns the descriptor of the last one, and the file's name in it."""
    root.mkdir(mode=0o700, exist_ok=True)
    *parents, name = _parts(path)
    directory = os.open(root, _DIRECTORY)
    for part in parents:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=directory)
                os.chmod(part, _DIRECTORY_MODE, dir_fd=directory)
            below = _open_one(directory, part, path)
        finally:
            os.close(directory)
        directory = below
    return directory, name


def _open_directory(root: Path, parts: list[str], path: str) -> int:
    try:
        directory = os.open(root, _DIRECTORY)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    for part in parts:
        try:
            below = _open_one(directory, part, path)
        finally:
            os.close(directory)
        directory = below
    return directory


def _open_one(directory: int, name: str, path: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError:
        raise Conflict(f"{path} has a parent that is not a directory") from None


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in path:
        raise BadRequest(f"{path!r} is not a path of a file in a workspace")
    return parts


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
