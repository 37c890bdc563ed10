"""A directory tree as a stream of bytes, for workspaces that travel between a broker and its sandboxes.

Standard library only; both sides import it. What arrives is hostile on either side. Each name is one path
component that is created relative to the descriptor of its parent without following links, so that nothing
is written outside of the tree, and a tree may have any depth. Pipes, sockets and devices are left out, and
so are mounts. Everything here blocks. Nobody else may change the tree meanwhile.

A record is its length (four bytes, big-endian) and a JSON array::

    ["d", name, mode, mtime_ns]          enter a directory
    ["u"]                                leave it
    ["f", name, mode, mtime_ns, size, id]    a file; the id is that of its inode if it has several names
    ["x", offset, length]                followed by so many bytes of the file
    ["h", name, id]                      another name of that file
    ["l", name, target]                  a symbolic link
    ["."]                                the end of the tree
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

PIECE_BYTES = 256 * 1024
_MAX_RECORD_BYTES = 64 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = ".kernelbroker-links"
"""In the tree while it is written: a further name of each file that has several."""


class TreeError(Exception):
    """The stream is not one of a tree, has no end, or exceeds a limit."""


def read_tree(root: Path) -> Generator[bytes, None, None]:
    """Yield a tree in pieces. Files and directories that their owner may not read are made readable.

    Raises:
        OSError: the directory itself cannot be read.
    """
    current = os.open(root, _DIRECTORY)
    try:
        device = os.fstat(current).st_dev
        seen: set[int] = set()
        levels = [_names(current)]
        while levels:
            if not levels[-1]:
                levels.pop()
                if levels:
                    current = _replace(current, "..")
                    yield _record("u")
                continue
            name = levels[-1].pop()
            try:
                status = os.stat(name, dir_fd=current, follow_symlinks=False)
                if status.st_dev != device:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    below = _open(current, name, status.st_mode, _DIRECTORY)
                    yield _record("d", name, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
                    os.close(current)
                    current = below
                    levels.append(_names(current))
                elif stat.S_ISLNK(status.st_mode):
                    yield _record("l", name, os.readlink(name, dir_fd=current))
                elif stat.S_ISREG(status.st_mode):
                    yield from _file(current, name, status, seen)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.EIO):
                    raise
        yield _record(".")
    finally:
        os.close(current)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _replace(directory: int, name: str) -> int:
    """Open an entry of a directory in place of the directory."""
    other = os.open(name, _DIRECTORY, dir_fd=directory)
    os.close(directory)
    return other


def _open(directory: int, name: str, mode: int, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError:
        os.chmod(name, stat.S_IMODE(mode) | 0o700, dir_fd=directory)
        return os.open(name, flags, dir_fd=directory)


def _file(directory: int, name: str, status: os.stat_result, seen: set[int]) -> Iterator[bytes]:
    inode = status.st_ino if status.st_nlink > 1 else None
    if inode in seen:
        yield _record("h", name, inode)
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = _open(directory, name, status.st_mode, flags)
    try:
        size = os.fstat(file).st_size
        mode = stat.S_IMODE(status.st_mode)
        yield _record("f", name, mode, status.st_mtime_ns, size, inode)
        if inode is not None:
            seen.add(inode)
        offset = 0
        while offset < size:
            try:
                offset = os.lseek(file, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to the end
                    return
            data = os.pread(file, PIECE_BYTES, offset)
            if not data:
                return
            yield _record("x", offset, len(data)) + data
            offset += len(data)
    finally:
        os.close(file)


def _record(*fields: Any) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return len(text).to_bytes(4, "big") + text


class TreeWriter:
    """Writes a tree into a directory. Names that exist there stay as they are.

    `feed` it with the stream, then `finish`; `close` it in any case.

    Args:
        root: an existing directory, which nobody else changes meanwhile.
        max_bytes: what all files may use together.
        max_entries: the number of files, directories and links.
    """

    def __init__(self, root: Path, max_bytes: int, max_entries: int) -> None:
        self._bytes_left, self._entries_left = max_bytes, max_entries
        self._root = root
        self._current = os.open(root, _DIRECTORY)
        self._levels: list[tuple[int, int] | None] = []
        self._skipped = 0  # levels below a name that is no directory here
        self._file: int | None = None
        self._times = 0
        self._buffer = bytearray()
        self._expected = 0  # bytes of an extent
        self._offset = 0
        self._inodes: set[int] = set()
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Write what has come. Raises TreeError, OSError."""
        self._buffer += data
        try:
            while self._feed():
                pass
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise TreeError("the stream is not one of a tree") from error

    def _feed(self) -> bool:
        """Write the next record, or some of an extent. Returns whether there may be more."""
        if self._expected:
            piece = bytes(self._buffer[: self._expected])
            del self._buffer[: len(piece)]
            if piece:
                self._write(piece)
            return bool(piece)
        if len(self._buffer) < 4:
            return False
        length = int.from_bytes(self._buffer[:4], "big")
        if length > _MAX_RECORD_BYTES or self._ended:
            raise TreeError("the stream is not one of a tree")
        if len(self._buffer) < 4 + length:
            return False
        text = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        self._take(json.loads(text))
        return True

    def finish(self) -> None:
        """Check that the whole tree has come. Raises TreeError."""
        if not self._ended:
            raise TreeError("the stream ended early")

    def close(self) -> None:
        """Release the descriptors, and remove what helped to write. Calling it twice does no harm."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._current != -1:
            os.close(self._current)
            self._current = -1
            if self._inodes:
                shutil.rmtree(self._root / _LINKS, ignore_errors=True)

    def _take(self, record: list[Any]) -> None:
        match record:
            case ["x", int(offset), int(length)]:
                if offset < 0 or length <= 0:
                    raise TreeError("the stream is not one of a tree")
                self._offset, self._expected = offset, length
                return
        self._end_file()
        match record:
            case ["."] if not self._levels and not self._skipped:
                self._ended = True
            case ["u"] if self._skipped:
                self._skipped -= 1
            case ["u"] if self._levels:
                self._leave()
            case ["d", str(name), int(mode), int(times)]:
                self._enter(_checked(name), mode, times)
            case ["f", str(name), int(mode), int(times), int(size), int() | None as inode]:
                self._make_file(_checked(name), mode, times, size, inode)
            case ["h", str(name), int(inode)]:
                self._count()
                if not self._skipped and inode in self._inodes:
                    with contextlib.suppress(FileExistsError):
                        os.link(
                            self._root / _LINKS / str(inode),
                            _checked(name),
                            dst_dir_fd=self._current,
                        )
            case ["l", str(name), str(target)]:
                self._count()
                if not self._skipped:
                    with contextlib.suppress(FileExistsError):
                        os.symlink(target, _checked(name), dir_fd=self._current)
            case _:
                raise TreeError("the stream is not one of a tree")

    def _count(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise TreeError("the tree has too many entries")

    def _enter(self, name: str, mode: int, times: int) -> None:
        self._count()
        if self._skipped:
            self._skipped += 1
            return
        kept: tuple[int, int] | None = (mode, times)
        try:
            os.mkdir(name, 0o700, dir_fd=self._current)
        except FileExistsError:
            kept = None
        try:
            self._current = _replace(self._current, name)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                raise
            self._skipped = 1
            return
        self._levels.append(kept)

    def _leave(self) -> None:
        level = self._levels.pop()
        below, self._current = self._current, -1
        try:
            self._current = os.open("..", _DIRECTORY, dir_fd=below)
            if level is not None:
                mode, times = level
                os.utime(below, ns=(times, times))
                os.fchmod(below, mode & 0o1777)
        finally:
            os.close(below)

    def _make_file(self, name: str, mode: int, times: int, size: int, inode: int | None) -> None:
        self._count()
        if size < 0:
            raise TreeError("the stream is not one of a tree")
        if self._skipped:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._file = os.open(name, flags, 0o600, dir_fd=self._current)
        except FileExistsError:
            return
        self._times = times
        os.ftruncate(self._file, size)
        os.fchmod(self._file, mode & 0o1777)
        if inode is not None:
            (self._root / _LINKS).mkdir(mode=0o700, exist_ok=True)
            os.link(name, self._root / _LINKS / str(inode), src_dir_fd=self._current)
            self._inodes.add(inode)

    def _write(self, data: bytes) -> None:
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise TreeError("the tree is too large")
        self._expected -= len(data)
        if self._file is not None:
            view, offset = memoryview(data), self._offset
            while view:
                written = os.pwrite(self._file, view, offset)
                view, offset = view[written:], offset + written
        self._offset += len(data)

    def _end_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.utime(file, ns=(self._times, self._times))
            finally:
                os.close(file)


def _checked(name: str) -> str:
    if name in ("", ".", "..", _LINKS) or "/" in name or "\0" in name:
        raise TreeError("the stream has a name that leads elsewhere")
    return name
