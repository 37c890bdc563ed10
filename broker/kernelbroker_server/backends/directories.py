"""The directories of a broker, their lock, and their removal.

Each broker has a directory below `data_dir` for workspaces, and one below `run_dir` for sockets, which need
a short path. The name of both is the broker's id. A running broker holds a lock on its directory below
`data_dir`, which survives a reboot. The lock of a dead broker is free. The locked file says
whose directory it is: a directory without that mark is never removed, whatever its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from . import sandbox_record
from .child import Child
from .orphan_watch import LOCK, WATCH_LOCK

log = logging.getLogger(__name__)

NO_ID_FILE = Path()
"""In place of an id file: the store tells other brokers where this one's sandboxes are."""
_DEAD_SINCE = "dead-since"
"""The file in which other brokers note when they found a broker with containers dead."""
_MARK = "the sandboxes of kernelbroker {}\n"
"""The content of the file `lock`, with the broker's id."""
_BROKER_ID = re.compile(r"[0-9a-f]{8}")
_REMOVE_TIMEOUT_S = 120.0
_LOCK_TRIES, _LOCK_PAUSE_S = 100, 0.05


@dataclass(frozen=True, slots=True)
class Directories:
    """The two directories of one broker, locked.

    Attributes:
        broker_id: random, and new for each start of a broker, unless it continues an earlier one.
        data, run: the broker's two directories, with mode 0700.
    """

    broker_id: str
    data: Path
    run: Path
    _lock: int

    @property
    def sandboxes(self) -> Path:
        """Holds a directory for each sandbox."""
        return self.data / "sandboxes"

    @classmethod
    def open(cls, data_dir: Path, run_dir: Path, id_file: Path | None) -> Directories:
        """Continue those of the broker whose id is in the file, or make new ones and write it.

        Raises:
            OSError
        """
        if id_file is None or id_file == NO_ID_FILE:
            return cls.create(data_dir, run_dir)
        with contextlib.suppress(FileNotFoundError):
            earlier = id_file.read_text("ascii", "replace")
            if _BROKER_ID.fullmatch(earlier):
                directories = cls.resume(data_dir, run_dir, earlier)
                if directories is not None:
                    return directories
        directories = cls.create(data_dir, run_dir)
        new = id_file.with_suffix(".new")
        new.write_text(directories.broker_id)
        new.replace(id_file)
        return directories

    @classmethod
    def resume(cls, data_dir: Path, run_dir: Path, broker_id: str) -> Directories | None:
        """Take over the directories of an earlier broker, which has died; None if there are none.

        Raises:
            OSError: another process has them.
        """
        data, run = data_dir.absolute() / broker_id, run_dir.absolute() / broker_id
        if not data.is_dir() or not run.is_dir():
            return None
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                lock = _take_lock(data)
                (data / _DEAD_SINCE).unlink(missing_ok=True)
                _mark(lock, broker_id)
                return cls(broker_id, data, run, lock)
            time.sleep(_LOCK_PAUSE_S)  # its orphan watch has the lock for moments
        raise OSError(None, f"{data} is locked by another broker")

    @classmethod
    def seize(cls, data_dir: Path, run_dir: Path, broker_id: str) -> Directories | None:
        """Take over the directories of a broker that has lost its lease; None if there are none.

        The broker may live. Its lock is worth nothing: the file is replaced, and nobody looks at it again.

        Raises:
            OSError
        """
        data, run = data_dir.absolute() / broker_id, run_dir.absolute() / broker_id
        if not _BROKER_ID.fullmatch(broker_id) or not data.is_dir() or not run.is_dir():
            return None
        lock = seize_lock(data)
        _mark(lock, broker_id)
        return cls(broker_id, data, run, lock)

    @classmethod
    def create(cls, data_dir: Path, run_dir: Path) -> Directories:
        """Make both directories and take the lock. Raises OSError."""
        broker_id = secrets.token_hex(4)
        data, run = data_dir.absolute() / broker_id, run_dir.absolute() / broker_id
        for directory in (data.parent, run.parent):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without the lock another broker would remove the directory, so rename it after locking.
        unnamed = data.with_name(f".{broker_id}")
        unnamed.mkdir(mode=0o700)
        (unnamed / "sandboxes").mkdir()
        (unnamed / LOCK).touch()
        lock = _take_lock(unnamed)
        _mark(lock, broker_id)
        unnamed.rename(data)
        run.mkdir(mode=0o700, exist_ok=True)  # it exists if data_dir is run_dir
        return cls(broker_id, data, run, lock)

    def of_the_dead(self, postponed: list[float] | None = None) -> list[Directories]:
        """The directories of dead brokers, locked so that no other broker removes them too.

        Args:
            postponed: gets the seconds after which to call this again, for each dead broker whose
                containers may still be adopted.
        """
        found = []
        for data in self.data.parent.iterdir():
            if data != self.data and _has_mark(data):
                with contextlib.suppress(OSError):  # locked, or not a broker's directory
                    if (data / WATCH_LOCK).exists():  # somebody may adopt its sandboxes
                        os.close(_take_lock(data, WATCH_LOCK))
                    lock = _take_lock(data)
                    if (grace := _grace_left(data)) > 0:
                        os.close(lock)
                        if postponed is not None:
                            postponed.append(grace)
                        continue
                    found.append(Directories(data.name, data, self.run.with_name(data.name), lock))
        return found

    def release(self) -> None:
        """Release the lock, and leave the directories to the next broker."""
        os.close(self._lock)

    async def remove(self) -> None:
        """Remove both directories and release the lock.

        The directory with the lock is removed last: if this fails, another broker tries again.
        """
        if await remove_tree(self.sandboxes) and await remove_tree(self.run):
            await remove_tree(self.data)
        os.close(self._lock)


async def remove_tree(path: Path) -> bool:
    """Remove a directory with files of user code. Returns whether it is removed; never raises.

    rm(1) does not follow links, removes trees of any depth, and occupies no thread of the event loop.
    """
    output = ""
    for command in ("rm -rf", "chmod -R u+rwx", "rm -rf"):  # an ordinary user may lack permissions
        if not _exists(path):
            return True
        try:
            child = Child([*command.split(), "--", str(path)], env={})
        except OSError as error:
            output = str(error)
            break
        await asyncio.wait([child.exited], timeout=_REMOVE_TIMEOUT_S)
        if not child.exited.done():
            child.kill()
            await child.wait()
        output = child.output_tail()
    if _exists(path):
        log.warning("Could not remove %s: %s", path, output)
        return False
    return True


def _grace_left(data: Path) -> float:
    """Return for how many seconds containers of a dead broker may still be adopted.

    Nobody knows when it died, so the time counts from the first broker that sees it. Jails have a process
    that keeps the lock `watch` meanwhile.
    """
    records = map(sandbox_record.read, (data / "sandboxes").glob("*"))
    grace = max((each.grace for each in records if each and each.leader is None), default=0.0)
    if not grace:
        return 0.0
    now, noted = time.clock_gettime(time.CLOCK_BOOTTIME), data / _DEAD_SINCE
    try:
        alone_for = now - float(noted.read_text())
    except (FileNotFoundError, ValueError):
        noted.write_text(repr(now))
        alone_for = 0.0
    return grace - alone_for if alone_for >= 0 else 0.0  # less than 0 is another boot


def seize_lock(directory: Path, name: str = LOCK) -> int:
    """Take a lock from whoever has it. Only for who owns what it protects, by the store."""
    new = directory / f"{name}.{secrets.token_hex(4)}"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(directory / name)
    return lock


def _mark(lock: int, broker_id: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, _MARK.format(broker_id).encode(), 0)


def _has_mark(data: Path) -> bool:
    """Whether this is the directory of a broker, running or dead, and not just one with such a name."""
    if not _BROKER_ID.fullmatch(data.name) or data.is_symlink():
        return False
    try:
        lock = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.read(lock, 100) == _MARK.format(data.name).encode()
    except OSError:  # a directory
        return False
    finally:
        os.close(lock)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _take_lock(directory: Path, name: str = LOCK) -> int:
    """Raises OSError if another process holds the lock, or the file does not exist."""
    lock = os.open(directory / name, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
