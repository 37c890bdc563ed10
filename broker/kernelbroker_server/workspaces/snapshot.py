"""A workspace as entries and as pieces of files that are named by their hash.

`Scan` reads a directory, also while hostile code changes it, and never follows a link. It reads no file
again whose inode has not changed. `Restoring` makes a directory from entries. Neither uses a network.
Everything here blocks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from kernelbroker_kernel.contract import PROJECT

from .file_paths import STEP, directory, opened_below

PIECE = 4 * 1024**2
"""Bytes of a piece; the last one of a file is shorter."""
BATCH_PIECES = 64
_SETTLED_NS = 2 * 10**9
"""A file that was changed so short before it was read may change again without another time of change."""
MAX_PATH = 3_900
"""Bytes of a path in the workspace. Linux takes 4,095 with the way to the workspace; code can make more."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MODES = 0o1777
"""The bits of a mode that are kept: neither setuid nor setgid."""
_MOUNTS = (b"shared", PROJECT.encode())
"""Directories in a workspace that may be mount points. They are not kept while they are empty."""

Digest: TypeAlias = bytes
"""SHA-256 of a piece."""
HOLE: Digest = b""
"""In place of the digest of a piece that has only zeros."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """A file, a directory or a symbolic link.

    Attributes:
        path: relative to the workspace.
        user: its owner.
        modified: in nanoseconds since the epoch.
        target: of a link.
    """

    path: bytes
    kind: Literal["file", "directory", "link"]
    mode: int
    user: int
    modified: int
    size: int = 0
    pieces: tuple[Digest, ...] = ()
    target: bytes = b""


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """All entries of a workspace; each directory comes before what is in it.

    Attributes:
        user: the owner of the workspace.
    """

    user: int
    entries: tuple[Entry, ...]

    @property
    def digests(self) -> set[Digest]:
        return {piece for entry in self.entries for piece in entry.pieces if piece != HOLE}

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


_Version: TypeAlias = tuple[int, int, int, int]
"""Inode, size, and the times of the last change of content and of the inode. User code cannot set the
last one."""
Index: TypeAlias = Mapping[bytes, tuple[_Version, tuple[Digest, ...]]]
"""The files that an earlier scan has read, by path."""


class _Way:
    """The directories on the way to the last one, which stay open: so a deep tree costs one call for each.

    Only for a walk that is depth first.
    """

    _OPEN = 64

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: list[bytes] = []
        self._open: deque[int] = deque()
        """The last of them. They end at the depth `_depth`."""
        self._depth = 0

    def go(self, depth: int, name: bytes) -> int:
        """Return a descriptor of a directory in the last one of the level above. Raises OSError."""
        while self._open and self._depth >= max(depth, 1):
            os.close(self._open.pop())
            self._depth -= 1
        del self._names[max(depth - 1, 0) :]
        if depth:
            self._names.append(name)
        if not self._open:
            self._depth = 0
            self._open.append(os.open(self._root, STEP))
        for each in self._names[self._depth :]:
            self._open.append(os.open(each, STEP, dir_fd=self._open[-1]))
            self._depth += 1
            if len(self._open) > self._OPEN:
                os.close(self._open.popleft())
        return self._open[-1]

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())


class Scan:
    """One reading of a workspace. `batches` comes first; then the attributes are complete.

    `batches` raises OSError if the workspace itself is missing or cannot be read.

    Args:
        index: that of the previous scan of these files.
        stored: the pieces that need not be read again.
        max_size, max_entries: what is more is left out.

    Attributes:
        index: for the next scan.
        left_out: how many entries could not be read or are too much.
    """

    def __init__(
        self,
        root: Path,
        index: Index,
        stored: set[Digest],
        *,
        max_size: int,
        max_entries: int,
    ) -> None:
        self.index: dict[bytes, tuple[_Version, tuple[Digest, ...]]] = {}
        self.left_out = 0
        self._root, self._earlier, self._stored = root, index, stored
        self._max_size, self._max_entries = max_size, max_entries
        self._size = 0
        self._user = os.geteuid()
        self._entries: list[Entry] = []
        self._began = time.time_ns()

    def batches(self) -> Generator[dict[Digest, bytes], None, None]:
        """The pieces that are not stored yet, about `PIECE` bytes at a time."""
        batch: dict[Digest, bytes] = {}
        size = 0
        for digest, data in self._pieces():
            batch[digest] = data
            size += len(data)
            if size >= PIECE or len(batch) >= BATCH_PIECES:
                yield batch
                self._stored |= batch.keys()
                batch, size = {}, 0
        if batch:
            yield batch
            self._stored |= batch.keys()

    def manifest(self) -> Manifest:
        full = {each.path.rpartition(b"/")[0] for each in self._entries}
        kept = [each for each in self._entries if each.path not in _MOUNTS or each.path in full]
        return Manifest(self._user, tuple(kept))

    def _pieces(self) -> Iterator[tuple[Digest, bytes]]:
        with directory(
            self._root, []
        ) as top:  # if it is missing, it moves just now: it is not empty
            self._user = os.fstat(top).st_uid
        folders = [(0, b"")]
        with contextlib.closing(_Way(self._root)) as way:
            while folders:  # depth first
                depth, path = folders.pop()
                try:
                    folder = opened_below(way.go(depth, path.rpartition(b"/")[2]))
                except OSError:  # removed meanwhile, or not readable
                    if not depth:
                        raise
                    self.left_out += 1
                    continue
                try:
                    yield from self._folder(folder, depth, path, folders)
                finally:
                    os.close(folder)

    def _folder(
        self, folder: int, depth: int, path: bytes, folders: list[tuple[int, bytes]]
    ) -> Iterator[tuple[Digest, bytes]]:
        found: list[bytes] = []
        for name in sorted(os.listdir(folder)):
            below = path + b"/" * bool(depth) + os.fsencode(name)
            if len(self._entries) >= self._max_entries or len(below) > MAX_PATH:
                self.left_out += 1
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                yield from self._entry(folder, name, below, found)
        folders += [(depth + 1, each) for each in reversed(found)]

    def _entry(
        self, folder: int, name: str, path: bytes, folders: list[bytes]
    ) -> Iterator[tuple[Digest, bytes]]:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode, user = status.st_mode & _MODES, status.st_uid
        if stat.S_ISDIR(status.st_mode):
            self._entries.append(Entry(path, "directory", mode, user, status.st_mtime_ns))
            folders.append(path)
        elif stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=folder))
            made = Entry(path, "link", mode, user, status.st_mtime_ns, target=target)
            self._entries.append(made)
        elif stat.S_ISREG(status.st_mode):
            try:
                yield from self._file(folder, name, path)
            except FileNotFoundError:
                raise
            except OSError:
                self.left_out += 1
        # Sockets, pipes and devices are nothing without the processes that use them.

    def _file(self, folder: int, name: str, path: bytes) -> Iterator[tuple[Digest, bytes]]:
        descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            if self._size + status.st_size > self._max_size:
                self.left_out += 1
                return
            version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            earlier = self._earlier.get(path)
            if (
                earlier is not None
                and earlier[0] == version
                and all(each in self._stored or each == HOLE for each in earlier[1])
            ):
                pieces: Sequence[Digest] = earlier[1]
                size = status.st_size
            else:
                pieces, size = [], 0
                while size < status.st_size:
                    data = _read(descriptor, size, min(PIECE, status.st_size - size))
                    if not data:  # it has become shorter
                        break
                    size += len(data)
                    digest = hashlib.sha256(data).digest() if data.strip(b"\0") else HOLE
                    pieces.append(digest)
                    if digest != HOLE and digest not in self._stored:
                        yield digest, data
            if status.st_ctime_ns < self._began - _SETTLED_NS:
                self.index[path] = version, tuple(pieces)
            self._size += size
            mode, modified = status.st_mode & _MODES, status.st_mtime_ns
            made = Entry(path, "file", mode, status.st_uid, modified, size, tuple(pieces))
            self._entries.append(made)
        finally:
            os.close(descriptor)


def _read(descriptor: int, start: int, size: int) -> bytes:
    """Read so many bytes, or all that are left. A hole is not read."""
    data = b""
    while len(data) < size and (more := os.pread(descriptor, size - len(data), start + len(data))):
        data = data + more if data else more
    return data


class Restoring:
    """Makes the directory of a manifest: call `make`, `write` for each piece, `finish`.

    Raises:
        ValueError: by all methods: the manifest is not valid.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest

    def make(self) -> list[tuple[Entry, int]]:
        """Make directories and empty files. Returns what is to be written: files, and numbers of pieces."""
        self._root.mkdir(mode=0o700)
        folders = {b""}
        wanted: list[tuple[Entry, int]] = []
        seen: set[bytes] = set()
        for entry in self._manifest.entries:
            parent, _, name = entry.path.rpartition(b"/")
            is_name = name not in (b"", b".", b"..") and b"\0" not in name
            if not is_name or parent not in folders or entry.path.startswith(b"/"):
                raise ValueError(f"{entry.path!r} is no path of a workspace")
            if entry.path in seen:
                raise ValueError(f"{entry.path!r} comes twice")
            seen.add(entry.path)
            if entry.kind == "directory":
                folders.add(entry.path)
                os.mkdir(self._path(entry), 0o700)  # noqa: PTH102 - bytes
            elif entry.kind == "file":
                count = -(-entry.size // PIECE)
                if len(entry.pieces) != count or entry.size < 0:
                    raise ValueError(f"{entry.path!r} lacks pieces")
                descriptor = os.open(self._path(entry), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    os.truncate(descriptor, entry.size)
                finally:
                    os.close(descriptor)
                wanted += [
                    (entry, number) for number in range(count) if entry.pieces[number] != HOLE
                ]
        return wanted

    def write(self, entry: Entry, number: int, data: bytes) -> None:
        """Write a piece. Raises ValueError if it is not what its digest says."""
        if hashlib.sha256(data).digest() != entry.pieces[number]:
            raise ValueError(f"a piece of {entry.path!r} is damaged")
        if len(data) > entry.size - number * PIECE:
            raise ValueError(f"a piece of {entry.path!r} is too long")
        with open(self._path(entry), "r+b") as file:  # noqa: PTH123 - a path of bytes
            file.seek(number * PIECE)
            file.write(data)

    def finish(self) -> None:
        """Make links last, so that nothing is written through one; set modes, times and owners."""
        for entry in self._manifest.entries:
            if entry.kind == "link":
                os.symlink(entry.target, self._path(entry))  # noqa: PTH211 - bytes
        for entry in reversed(self._manifest.entries):
            path = self._path(entry)
            if os.geteuid() == 0:
                os.chown(path, entry.user, entry.user, follow_symlinks=False)
            if entry.kind != "link":
                os.chmod(path, entry.mode & _MODES)  # noqa: PTH101 - bytes
                os.utime(path, ns=(entry.modified, entry.modified))
        if os.geteuid() == 0:
            os.chown(self._root, self._manifest.user, -1)

    def _path(self, entry: Entry) -> bytes:
        return os.fsencode(self._root) + b"/" + entry.path
