"""Keeps room for the broker on the disk of the workspaces, whatever sandboxes write.

While less space is free than what is kept, no workspace may grow. `quota_watch.py` enforces this quota.
A preallocated file reserves further space. It is given up part by part when the disk is so full that
launches and results would fail: whoever filled it may still write until its session has stopped it, so the
last part waits for that. The file is made again when there is room.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

RESERVE = ".reserve"
"""The name of the file."""
_LARGEST_SHARE = 20
"""Of a small disk at most one part in this many is kept."""
_RESERVE_BYTES, _RESERVE_SHARE = 32 * 2**20, 2
"""The size of the file; at most one part in so many of what is kept. SQLite's log alone takes 4 MiB."""
_PARTS = 4
"""Of the file. One is given up if less than two are free: a launch and SQLite's log fit in these."""
_WRITERS_S = 8.0
"""How long the last one waits: an interrupt, its grace, and the end of the sandbox."""
_MORE_SHARE = 10
"""There is room again when one part in this many more is free."""
_FASTEST = 4 * 2**30
"""The most bytes per second that sandboxes are assumed to write. It sets the time until the next look."""
_AGAIN_S, _OFTEN_S, _SELDOM_S = 0.02, 0.1, 2.0


@dataclass(frozen=True)
class Disk:
    """Bytes of a file system: all, and those that are free."""

    total: int
    free: int

    @classmethod
    def of(cls, directory: Path) -> Disk:
        """Raises OSError."""
        found = os.statvfs(directory)
        return cls(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def kept_of(disk: Disk, kept: int) -> int:
    """The bytes of a disk that are kept free: `kept`, on a small disk less."""
    return min(kept, disk.total // _LARGEST_SHARE)


class DiskRoom:
    """Watches the disk, in `run`.

    Args:
        directory: that of the workspaces.
        kept: bytes that sandboxes leave free, on a small disk less; 0 to watch nothing.
        look: finds the bytes of the disk; tests replace it.

    Attributes:
        is_short: no workspace may grow.
        listeners: called when that has changed.
    """

    def __init__(
        self, directory: Path, kept: int, *, look: Callable[[Path], Disk] = Disk.of
    ) -> None:
        self.is_short = False
        self.listeners: set[Callable[[], None]] = set()
        self._directory = directory
        self._kept = kept
        self._look = look
        self._reserve = directory / RESERVE
        self._lock = threading.Lock()  # a look in a thread may outlive the task that has begun it
        self._is_over = False
        self._full_since: float | None = None
        self._is_being_used = False

    def give_up(self) -> None:
        """Remove the reserve, for good: the broker ends."""
        with self._lock, suppress(OSError):
            self._is_over = True
            self._reserve.unlink()

    async def run(self) -> None:
        """Look from time to time, until cancelled."""
        while self._kept:
            wait = _SELDOM_S
            with suppress(OSError):  # the directory is not there for a moment
                disk = await asyncio.to_thread(self._look_once)
                kept = kept_of(disk, self._kept)
                wait = min(max((disk.free - kept) / _FASTEST, _OFTEN_S), _SELDOM_S)
                if self._is_being_used:
                    wait = _AGAIN_S
                enough = kept + kept // _MORE_SHARE if self.is_short else kept
                self._tell(disk.free < enough, disk)
            await asyncio.sleep(wait)

    def _look_once(self) -> Disk:
        """What is free. Gives up the reserve if nearly nothing is, and makes it if there is room."""
        disk = self._look(self._directory)
        kept = kept_of(disk, self._kept)
        size = max(min(_RESERVE_BYTES, kept // _RESERVE_SHARE), 1)
        with self._lock:
            try:
                held = self._reserve.stat().st_size
            except FileNotFoundError:
                held = 0
            part = size // _PARTS
            is_full = disk.free < 2 * part
            self._is_being_used = is_full and held > part
            if is_full:
                self._use_reserve(held, part)
            elif disk.free > kept + size - held:
                self._full_since = None
                if held < size and not self._is_over:
                    self._make_reserve(size)
        return disk

    def _use_reserve(self, held: int, part: int) -> None:
        """Give up a part of it. The last one waits until whoever filled the disk must have ended."""
        if self._full_since is None:
            self._full_since = time.monotonic()
            logger.error(
                "the disk of %s is full: the broker's reserve is used now", self._directory
            )
        if held > part:
            os.truncate(self._reserve, held - part)
        elif held and time.monotonic() - self._full_since > _WRITERS_S:
            self._reserve.unlink()
            logger.error("the disk of %s is full, with the broker's reserve", self._directory)

    def _make_reserve(self, size: int) -> None:
        descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:  # the file system cannot, or has been filled meanwhile
            self._reserve.unlink()
        finally:
            os.close(descriptor)

    def _tell(self, is_short: bool, disk: Disk) -> None:
        if is_short == self.is_short:
            return
        self.is_short = is_short
        if is_short:
            logger.warning(
                "the disk of %s has only %d MiB left: no workspace may grow until there is room",
                self._directory,
                disk.free // 2**20,
            )
        else:
            logger.info("the disk of %s has room again", self._directory)
        for listener in (*self.listeners,):
            listener()
