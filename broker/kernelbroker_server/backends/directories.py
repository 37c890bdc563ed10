"""A broker's own directories, the lock that tells that it lives, and their removal.

Each broker has a directory of its own name below `data_dir` (workspaces, kept on disk) and one
below `run_dir` (sockets, which need a short path). The lock lies in the former: what is on disk
outlives a reboot and must be found then. A broker that died, in whatever way, holds no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from .child import Child

log = logging.getLogger(__name__)

_LOCK = "lock"
_KEPT = ".workspaces"  # no broker's directory: `of_the_dead` passes over it
_REMOVE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Directories:
    """
    Attributes:
        broker_id: new for each broker.
        data, run: the broker's own two directories, open to nobody else.
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
    def create(cls, data_dir: Path, run_dir: Path) -> Directories:
        """Make both and take the lock. Raises OSError."""
        broker_id = secrets.token_hex(4)
        data, run = data_dir.absolute() / broker_id, run_dir.absolute() / broker_id
        for directory in (data.parent, run.parent):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # It gets its name only once it is locked, or another broker would take it for a dead one's.
        unnamed = data.with_name(f".{broker_id}")
        unnamed.mkdir(mode=0o700)
        (unnamed / "sandboxes").mkdir()
        (unnamed / _LOCK).touch()
        lock = _take_lock(unnamed)
        unnamed.rename(data)
        run.mkdir(mode=0o700, exist_ok=True)  # the same one if data_dir is run_dir
        return cls(broker_id, data, run, lock)

    def of_the_dead(self) -> list[Directories]:
        """Those of brokers that are gone, locked by us now, so that no other broker takes them."""
        found = []
        for data in self.data.parent.iterdir():
            if data != self.data and not data.name.startswith("."):
                with contextlib.suppress(OSError):  # locked, or no broker's directory
                    lock = _take_lock(data)
                    found.append(Directories(data.name, data, self.run.with_name(data.name), lock))
        return found

    async def remove(self) -> None:
        """Remove both, and let go of the lock, which goes last: without it nobody tries again."""
        if await remove_tree(self.sandboxes) and await remove_tree(self.run):
            await remove_tree(self.data)
        os.close(self._lock)


def kept_below(data_dir: Path) -> Path:
    """Where all brokers with this `data_dir` keep the workspaces that no sandbox has."""
    return data_dir.absolute() / _KEPT


async def remove_tree(path: Path) -> bool:
    """Remove a directory that hostile code has filled, and tell whether it is gone. Never raises.

    By rm(1): it follows no link, copes with any depth, and leaves the loop's threads to others.
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


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _take_lock(directory: Path) -> int:
    """Raises OSError if another process holds it, or there is none."""
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
