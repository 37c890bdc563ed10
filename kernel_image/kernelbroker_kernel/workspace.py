"""The workspace's files. No link or pipe that user code has planted is followed or waited for.

A path is walked from the workspace's root. Each component is opened relative to the one before, never
through a symbolic link, and only a regular file is opened at the end. User code may move files at any
moment, which harms only its own sandbox: this code runs inside, as the same user, and reaches nothing
that user code could not open itself.

Work that may take long is a generator, so that its caller can run other tasks in between.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from secrets import token_hex
from typing import TypedDict

from . import environment
from .contract import METADATA_PREFIX
from .errors import Refused

MAX_PATH_BYTES = 4096
MAX_ENTRIES = 10_000
MAX_LISTED_CHARS = 1024**2
"""The bound of all paths of a list together."""
MAX_DEPTH = 64
"""The greatest depth of a list."""

UPLOAD_PREFIX, REPLACES_SUFFIX = ".upload-", "-replaces"
"""Of the temporary names of uploads; the suffix if there is a file at the target."""

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class Entry(TypedDict):
    path: str
    kind: str
    size: int
    modified_at: str


def components(path: str, *, system: bool = False) -> list[str]:
    """The components of a path; none for the workspace itself. Raises Refused.

    Args:
        system: the path is one of the sandbox's own file system, without its leading slash. Then links
            in its parents are followed, here, and the components begin with the root: an absolute name
            ignores the directory that it is opened in.
    """
    if system:
        return _system_components(path)
    if "\0" in path:
        raise Refused("bad_request", "a path has no NUL in it")
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise Refused("bad_request", f"a path has at most {MAX_PATH_BYTES:,} bytes")
    if path.startswith("/"):
        raise Refused("bad_request", "give the path relative to /data, without a leading slash")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise Refused("bad_request", "a path has no '..' in it")
    return names


def _system_components(path: str) -> list[str]:
    if "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise Refused(
            "bad_request", f"a path has at most {MAX_PATH_BYTES:,} bytes, and no NUL in it"
        )
    folder, name = os.path.split(os.path.normpath(f"/{path}"))
    names = [each for each in os.path.realpath(folder).split("/") if each]
    if names[:1] == ["proc"] or (not names and name == "proc"):
        raise Refused("conflict", f"/{path}: files of /proc can be used by code only")
    return ["/", *names, *([name] if name else [])]


def open_file(names: list[str]) -> int:
    """A descriptor for reading a regular file. Raises Refused, OSError."""
    with _parent(names) as (parent, name):
        descriptor = os.open(name, _READ, dir_fd=parent)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise OSError(errno.EISDIR if kind == stat.S_IFDIR else errno.ENXIO, "no regular file")
    return descriptor


def make_directory(names: list[str]) -> None:
    """Make a directory and its parents; an existing one is no error."""
    with _directory(names, make=True):
        pass


def open_directory(names: list[str], *, make: bool = False) -> int:
    """Return a descriptor of a directory, to open entries relative to it. Raises OSError."""
    with _directory(names, make=make) as descriptor:
        return os.dup(descriptor)


def move(names: list[str], target: list[str]) -> None:
    """Rename, after making the parents of `target`. An existing file is replaced."""
    with _parent(names) as (parent, name):
        os.lstat(name, dir_fd=parent)  # before anything is made
        with _parent(target, make=True) as (target_parent, target_name):
            os.rename(name, target_name, src_dir_fd=parent, dst_dir_fd=target_parent)


class Upload:
    """A file that appears at its path, complete, when it is committed. Before that it has no name.

    If the file system has no nameless files, it has a temporary name beside its target. Anything at the
    path is replaced, unless it is a directory; a link is not followed.
    """

    def __init__(self, names: list[str]) -> None:
        self._temporary: str | None = None
        if not names:
            raise OSError(errno.EISDIR, "the workspace itself")
        self._name = names[-1]
        self._replaces = False
        with _directory(names[:-1], make=True) as parent:
            self._parent = os.dup(parent)
        try:
            self._check_target()
            self._descriptor = self._open()
        except BaseException:
            os.close(self._parent)
            raise

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def set_mode(self, mode: int) -> None:
        """Set its permissions, such as those of the file that it replaces."""
        os.fchmod(self._descriptor, mode & 0o777)

    def set_metadata(self, metadata: dict[str, str]) -> None:
        """Keep texts by key with the file. Raises Refused."""
        try:
            for key, value in metadata.items():
                os.setxattr(self._descriptor, f"{METADATA_PREFIX}{key}", value.encode())
        except OSError as error:  # too long for the file system, or it has none
            raise Refused(
                "bad_request", f"{self._name}: its metadata cannot be kept: {error.strerror}"
            ) from error

    def commit(self) -> None:
        """Give the file its name."""
        if self._temporary is None:
            self._temporary = self._new_name()
            source = f"/proc/self/fd/{self._descriptor}"
            os.link(source, self._temporary, dst_dir_fd=self._parent)
        os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._temporary = None

    def close(self) -> None:
        """Close the file. If it was not committed, it is gone."""
        if self._temporary is not None:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._parent)
        os.close(self._descriptor)
        os.close(self._parent)

    def _check_target(self) -> None:
        """Refuse a path that cannot become a file before anything is sent."""
        if len(os.fsencode(self._name)) > os.fpathconf(self._parent, "PC_NAME_MAX"):
            raise OSError(errno.ENAMETOOLONG, "the name is too long")
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(self._name, dir_fd=self._parent).st_mode):
                raise OSError(errno.EISDIR, "a directory")
            self._replaces = True

    def _open(self) -> int:
        try:
            return os.open(".", os.O_TMPFILE | _WRITE, 0o666, dir_fd=self._parent)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
        self._temporary = self._new_name()
        flags = os.O_CREAT | os.O_EXCL | _WRITE
        return os.open(self._temporary, flags, 0o666, dir_fd=self._parent)

    def _new_name(self) -> str:
        """A temporary name, which tells those who watch the directory what becomes of it."""
        return f"{UPLOAD_PREFIX}{token_hex(8)}{REPLACES_SUFFIX if self._replaces else ''}"


class List:
    """The entries of a directory, by path; with `recursive` also those below it.

    Run `read` to its end. Then `entries` has them in order, and `truncated` says whether there are more.
    """

    def __init__(self, names: list[str], *, recursive: bool) -> None:
        self.entries: list[Entry] = []
        self.truncated = False
        self._names = names
        self._recursive = recursive
        self._chars = 0

    def read(self) -> Iterator[None]:
        """Read in steps. Raises OSError if the path itself cannot be listed."""
        if self._names:
            with _parent(self._names) as (parent, name):
                status = os.lstat(name, dir_fd=parent)
            if not stat.S_ISDIR(status.st_mode):
                self._add("/".join(self._names), status)
                return
        folders = [self._names]
        for number, folder in enumerate(folders):  # grows while it is read: breadth first
            try:
                for name, status in _scan(folder):
                    path = [*folder, name]
                    if not self._add("/".join(path), status):
                        return self._sort()
                    if self._recursive and stat.S_ISDIR(status.st_mode):
                        if len(path) - len(self._names) < MAX_DEPTH:
                            folders.append(path)
                        else:
                            self.truncated = True
                    yield
            except OSError:  # removed meanwhile, or not readable
                if number == 0:
                    raise
        return self._sort()

    def _add(self, path: str, status: os.stat_result) -> bool:
        self._chars += len(path)
        if len(self.entries) >= MAX_ENTRIES or self._chars > MAX_LISTED_CHARS:
            self.truncated = True
            return False
        self.entries.append(
            {
                "path": path,
                "kind": _KINDS.get(stat.S_IFMT(status.st_mode), "other"),
                "size": status.st_size,
                "modified_at": _iso_time(status.st_mtime),
            }
        )
        return True

    def _sort(self) -> None:
        self.entries.sort(key=lambda entry: entry["path"])


def delete(names: list[str], *, recursive: bool) -> Iterator[None]:
    """Remove a file, a link, an empty directory, or with `recursive` any directory, in steps.

    Raises OSError; files that were removed before stay removed.
    """
    with _parent(names) as (parent, name):
        if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        if recursive:
            yield from _empty(parent, name)
        os.rmdir(name, dir_fd=parent)


def _empty(parent: int, name: str) -> Iterator[None]:
    """Remove the content of a directory, at any depth, with two open descriptors at a time."""
    current = os.open(name, _LOOK, dir_fd=parent)
    above: list[tuple[str, os.stat_result]] = []
    try:
        while True:
            child = None
            with os.scandir(current) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        child = entry.name
                        break
                    os.unlink(entry.name, dir_fd=current)
                    yield
            if child is not None:
                below = os.open(child, _LOOK, dir_fd=current)
                above.append((child, os.fstat(current)))
            elif above:
                child, expected = above.pop()
                below = os.open("..", _LOOK, dir_fd=current)
                if not os.path.samestat(os.fstat(below), expected):  # moved by user code
                    os.close(below)
                    raise OSError(errno.EBUSY, "moved meanwhile")
                os.rmdir(child, dir_fd=below)
            else:
                return
            os.close(current)
            current = below
            yield
    finally:
        os.close(current)


@contextmanager
def _directory(names: list[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of a directory, for opening entries relative to it."""
    descriptor = os.open(environment.WORKSPACE, _STEP)
    try:
        for name in names:
            try:
                below = os.open(name, _STEP, dir_fd=descriptor)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
                below = os.open(name, _STEP, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _parent(names: list[str], *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The directory of a path's last component, and that component."""
    if not names:
        raise Refused("bad_request", "this is the workspace itself; name something in it")
    with _directory(names[:-1], make=make) as descriptor:
        yield descriptor, names[-1]


def _scan(names: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    with _directory(names) as directory:
        descriptor = os.open(".", _LOOK, dir_fd=directory)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed meanwhile
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(descriptor)


def _iso_time(timestamp: float) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp, UTC)
    except (OverflowError, ValueError, OSError):  # user code can set any time
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds")
