"""Directories with files of user code as parts of a tar archive. Everything here blocks.

User code may change the files meanwhile, and plant links. Each directory is therefore opened relative to
its parent without following links, when an archive is written and when it is unpacked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..workspaces.file_paths import directory, opened_below

_LATEST = 2**40
"""Times that user code has set are cut to what fits into an archive."""
_MAX_DEPTH = 200
_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Damaged(Exception):
    """An archive is damaged, or not one of ours. The message says what is wrong."""


@dataclass(slots=True)
class Counts:
    """What was written.

    Attributes:
        left_out: entries that could not be read, and those that are neither file, directory nor link.
    """

    files: int = 0
    size: int = 0
    left_out: int = 0


def add_tree(archive: tarfile.TarFile, root: Path, prefix: str, counts: Counts) -> None:
    """Add a directory with all that is in it. What is removed meanwhile is left out."""
    folders: list[list[str]] = [[]]
    for folder in folders:  # grows while it is read: parents come before their content
        try:
            with directory(root, folder) as parent:
                descriptor = opened_below(parent)
        except FileNotFoundError:
            continue
        except OSError:
            counts.left_out += 1
            continue
        try:
            status = os.fstat(descriptor)
            archive.addfile(_info(prefix, folder, status, tarfile.DIRTYPE))
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - of a descriptor
                if _is_directory(name, descriptor):
                    if len(folder) < _MAX_DEPTH:
                        folders.append([*folder, name])
                    else:
                        counts.left_out += 1
                else:
                    _add_entry(archive, descriptor, prefix, [*folder, name], counts)
        finally:
            os.close(descriptor)


def _is_directory(name: str, parent: int) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    except OSError:
        return False


def _add_entry(
    archive: tarfile.TarFile, parent: int, prefix: str, names: list[str], counts: Counts
) -> None:
    """Add a file or a link."""
    try:
        status = os.lstat(names[-1], dir_fd=parent)
        if stat.S_ISLNK(status.st_mode):
            info = _info(prefix, names, status, tarfile.SYMTYPE)
            info.linkname = os.readlink(names[-1], dir_fd=parent)
            archive.addfile(info)
            counts.files += 1
            return
        if not stat.S_ISREG(status.st_mode):  # a socket, a pipe
            counts.left_out += 1
            return
        with os.fdopen(os.open(names[-1], _OPENED, dir_fd=parent), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                counts.left_out += 1
                return
            info = _info(prefix, names, status, tarfile.REGTYPE)
            info.size = status.st_size
            archive.addfile(info, _Exactly(file, status.st_size))
    except FileNotFoundError:
        return
    except PermissionError:
        counts.left_out += 1
        return
    counts.files += 1
    counts.size += status.st_size


class _Exactly:
    """A file that has a certain size, whatever its writer does meanwhile."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        size = self._left if size < 0 else min(size, self._left)
        data = self._file.read(size)
        self._left -= size
        return data.ljust(size, b"\0")


def _info(
    prefix: str, names: Iterable[str], status: os.stat_result, kind: bytes
) -> tarfile.TarInfo:
    info = tarfile.TarInfo("/".join([prefix, *names]))
    info.type, info.mode = kind, stat.S_IMODE(status.st_mode)
    info.uid, info.gid = status.st_uid, status.st_gid
    info.mtime = min(max(status.st_mtime, 0), _LATEST)
    return info


def unpack(archive: tarfile.TarFile, root: Path) -> None:
    """Unpack an archive into an empty directory. Owners are those of the archive if this is root.

    Raises:
        Damaged
        OSError
    """
    later: list[tuple[list[str], tarfile.TarInfo]] = []
    try:
        for member in archive:
            names = _names(member.name)
            with directory(root, names[:-1]) as parent:
                _unpack_one(archive, member, names[-1], parent)
            if member.isdir():
                later.append((names, member))
    except (tarfile.TarError, EOFError) as exc:
        raise Damaged(f"the archive is damaged: {exc}") from exc
    for names, member in reversed(later):  # a directory may not be writable
        with directory(root, names[:-1]) as parent:
            descriptor = opened_below(parent, names[-1])
        try:
            _set(descriptor, member)
        finally:
            os.close(descriptor)


def _unpack_one(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent: int) -> None:
    if member.isdir():
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)  # the later one counts
    if member.issym():
        os.symlink(member.linkname, name, dir_fd=parent)
        if os.geteuid() == 0:
            os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    elif member.isreg():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
            content = archive.extractfile(member)
            assert content is not None, "it is a file"
            shutil.copyfileobj(content, file, 1024**2)
            file.flush()
            _set(file.fileno(), member)
    else:
        raise Damaged(f"the archive has {member.name}, which is neither file, directory nor link")


def _set(descriptor: int, member: tarfile.TarInfo) -> None:
    if os.geteuid() == 0:
        os.fchown(descriptor, member.uid, member.gid)
    os.fchmod(descriptor, member.mode & 0o777)
    with contextlib.suppress(OSError, OverflowError):
        os.utime(descriptor, (member.mtime, member.mtime))


def _names(path: str) -> list[str]:
    names = path.rstrip("/").split("/")
    if not all(names) or {".", ".."} & set(names):
        raise Damaged(f"the archive has the path {path!r}, which is none of a backup")
    return names
