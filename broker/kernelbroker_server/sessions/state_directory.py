"""The directory of a broker's state: its lock, its epoch, and the files that are kept aside."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from ..kept_aside import set_aside

DATABASE, LOCK = "store.sqlite3", "lock"
_EPOCH, _EPOCH_BYTES = "epoch", 8


class InUse(OSError):
    """Another broker has the directory. The message names it."""


class StateDirectory:
    """A directory that one broker has at a time.

    The lock keeps a second broker out. Where it fails (a network file system, a lock file that somebody
    removed), the epoch tells: a number that each broker raises when it takes the directory.

    Attributes:
        database: the path of the database.
        epoch: of this broker; 0 until `raise_epoch`.
    """

    def __init__(self, path: Path) -> None:
        """Make the directory if it does not exist, with mode 0700, and lock it.

        Raises:
            InUse: another broker has it.
            OSError: it cannot be made or written.
        """
        self.path = path.absolute()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        self.database = self.path / DATABASE
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._lock)
            os.close(self._lock)
            raise InUse(f"{self.path} is in use by {holder}") from None
        self.epoch = 0
        self._epoch = os.open(self.path / _EPOCH, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._lock, 0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        who = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
        os.pwrite(self._lock, json.dumps(who).encode(), 0)

    def release(self) -> None:
        """Give the directory to the next broker."""
        os.close(self._epoch)
        os.close(self._lock)

    def raise_epoch(self) -> None:
        """Take the directory over from every earlier broker. Raises OSError."""
        # A damaged file may hold any number.
        self.epoch = (self._newest_epoch() + 1) % 256**_EPOCH_BYTES
        os.pwrite(self._epoch, self.epoch.to_bytes(_EPOCH_BYTES, "big"), 0)

    @property
    def is_newest(self) -> bool:
        """Whether no later broker has taken the directory."""
        return self._newest_epoch() <= self.epoch

    def _newest_epoch(self) -> int:
        return int.from_bytes(os.pread(self._epoch, _EPOCH_BYTES, 0), "big")

    def set_aside(self, path: Path, sign: str, reason: object) -> None:
        """Keep a file of the store aside, with what SQLite has beside it. Raises OSError."""
        for each in (path, path.with_name(f"{path.name}-wal")):
            if each.exists():
                set_aside(each, sign, reason)


def _holder(lock: int) -> str:
    try:
        who = json.loads(os.pread(lock, 1000, 0))
        return f"the broker with pid {who['pid']} on {who['host']}, started {who['started']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another broker"
