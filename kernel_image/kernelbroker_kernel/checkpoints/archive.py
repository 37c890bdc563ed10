"""The format of a checkpoint: a manifest, the data of its variables, and the files as a tar.

    MAGIC, the manifest's length (8 bytes), the manifest (JSON), its CRC-32 (4 bytes)
    for each part of the manifest: its pieces, and their CRC-32 (4 bytes)
    a tar up to the end, if the manifest has `files`

A damaged part is noticed by its sum, and does not affect the others. Numbers are big-endian.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .. import environment
from ..contract import CHECKPOINTS
from ..errors import Refused
from .values import Values

MAGIC = b"kernelbroker checkpoint 1\n"
_MANIFEST_BYTES = 64 * 1024**2
_TAR_BYTES = 1024**2
"""Written at once."""


class _Summing:
    """A sink that computes the CRC-32 of what is written, as far as pyarrow needs one."""

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._sum = 0

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self._sum = zlib.crc32(view, self._sum)
            self._sink.write(view)
            return view.nbytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def end(self) -> None:
        """Write the sum of everything since the last one."""
        self._sink.write(struct.pack(">I", self._sum))
        self._sum = 0


def write(sink: Any, manifest: dict[str, Any], values: Values) -> None:
    """Write a checkpoint, with the workspace if the manifest says `files`. Raises OSError."""
    summing = _Summing(sink)
    data = json.dumps(manifest).encode()
    sink.write(MAGIC + struct.pack(">Q", len(data)))
    summing.write(data)
    summing.end()
    for body in values.bodies:
        values.write(body, summing)
        summing.end()
    if manifest["files"]:
        _write_files(sink)


def read_manifest(file: IO[bytes]) -> dict[str, Any]:
    """Read the manifest; the file is then at the first part. Raises Refused."""
    head = file.read(len(MAGIC) + 8)
    if not head.startswith(MAGIC[:-2]):
        raise Refused("conflict", "the checkpoint is damaged: it does not begin as one")
    if not head.startswith(MAGIC):
        raise Refused("conflict", "the checkpoint is of a newer version of the sandbox's image")
    with suppress(struct.error, ValueError):
        (size,) = struct.unpack(">Q", head[len(MAGIC) :])
        data = file.read(min(size, _MANIFEST_BYTES))
        if file.read(4) == struct.pack(">I", zlib.crc32(data)):
            manifest: dict[str, Any] = json.loads(data)
            return manifest
    raise Refused("conflict", "the checkpoint is damaged: its list of variables cannot be read")


def read_part(file: IO[bytes], sizes: list[int]) -> list[bytearray]:
    """Read the pieces of the next part. Raises ValueError if they are damaged."""
    pieces, total = [], 0
    for size in sizes:
        left = os.fstat(file.fileno()).st_size - file.tell()
        if size > left:
            raise ValueError("the checkpoint ends before its data")
        piece = bytearray(size)
        if file.readinto(piece) != size:  # type: ignore[attr-defined]
            raise ValueError("the checkpoint ends before its data")
        total = zlib.crc32(piece, total)
        pieces.append(piece)
    if file.read(4) != struct.pack(">I", total):
        raise ValueError("its data is damaged")
    return pieces


def parts_size(sizes: list[list[int]]) -> int:
    return sum(sum(each) + 4 for each in sizes)


def _write_files(sink: Any) -> None:
    with tarfile.open(
        fileobj=sink, mode="w|", bufsize=_TAR_BYTES, format=tarfile.PAX_FORMAT
    ) as tar:
        for path, entry in _walk():
            _write_file(tar, path, entry)


def _write_file(tar: tarfile.TarFile, path: str, entry: os.DirEntry[str]) -> None:
    info = tarfile.TarInfo(path)
    try:
        status = entry.stat(follow_symlinks=False)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, str(Path(entry.path).readlink())
        elif not stat.S_ISREG(status.st_mode):
            return  # a pipe or a socket belongs to a process
        else:
            with open(entry.path, "rb", opener=_no_links) as file:
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, _Exactly(file))  # type: ignore[arg-type]
            return
    except OSError:  # removed meanwhile, or not readable
        return
    tar.addfile(info)


def _no_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class _Exactly:
    """Reads a file. If it became shorter meanwhile, zeros follow."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def unreadable() -> Iterator[tuple[str, str]]:
    """What a checkpoint with files will lack: the paths in the workspace that cannot be read, and why."""
    failed: list[tuple[str, str]] = []
    for path, entry in _walk(lambda path, error: failed.append((path, _reason(error)))):
        try:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and not os.access(entry.path, os.R_OK):
                failed.append((path, "it cannot be read"))
            elif stat.S_ISLNK(status.st_mode):
                Path(entry.path).readlink()
        except FileNotFoundError:  # removed meanwhile
            pass
        except OSError as error:
            failed.append((path, _reason(error)))
        yield from failed
        failed.clear()
    yield from failed


def _reason(error: OSError) -> str:
    return f"it cannot be read: {error.strerror}"


def _walk(
    on_error: Callable[[str, OSError], None] = lambda *_: None,
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All entries of the workspace, but no other mount and nothing of ours."""
    root = environment.WORKSPACE
    left_out = {CHECKPOINTS, *_mounts(root)}
    folders = [""]
    for folder in folders:  # grows while it is read: breadth first
        try:
            entries = os.scandir(f"{root}/{folder}")
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as error:
            on_error(folder.rstrip("/"), error)
            continue
        with entries:
            for entry in entries:
                path = folder + entry.name
                if path in left_out:
                    continue
                yield path, entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")


def _mounts(root: str) -> set[str]:
    """The paths in the workspace where something else is mounted, such as the shared data."""
    with (
        suppress(OSError),
        Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as lines,
    ):
        points = [line.split(" ")[4] for line in lines]
        return {point[len(root) + 1 :] for point in points if point.startswith(f"{root}/")}
    return set()


def extract(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Put the files into the workspace. Yields the paths that could not be made, with the reason."""
    trusted: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    directories = []
    try:
        with tarfile.open(fileobj=file, mode="r|", bufsize=_TAR_BYTES) as tar:
            for member in tar:
                member.uid, member.gid = os.getuid(), os.getgid()
                if member.isdir():  # its permissions last, since they may forbid to write
                    directories.append((member.name, member.mode, member.mtime))
                    member.mode = 0o700
                try:
                    tar.extract(member, environment.WORKSPACE, **trusted)
                except OSError as error:
                    yield member.name, error.strerror or "it cannot be written"
    except tarfile.TarError:
        yield ".", "the files of the checkpoint are damaged; later ones are missing"
    for name, mode, mtime in reversed(directories):
        with suppress(OSError):
            path = Path(environment.WORKSPACE) / name
            path.chmod(mode)
            os.utime(path, (mtime, mtime))
