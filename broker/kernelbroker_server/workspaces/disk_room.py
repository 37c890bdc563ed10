"""Keeps room for the broker on the disk of the workspaces, whatever sandboxes write.

While less space is free than what is kept, no workspace may grow. `quota_watch.py` enforces this quota.
A preallocated file reserves further space. It is removed when the disk is so full that launches and results
would fail, and made again when there is room.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
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
_MORE_SHARE = 10
"""There is room again when one part in this many more is free."""
_FASTEST = 4 * 2**30
"""The most bytes per second that sandboxes are assumed to write. It sets the time until the next look."""
_OFTEN_S, _SELDOM_S = 0.1, 2.0


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
                enough = kept + kept // _MORE_SHARE if self.is_short else kept
                self._tell(disk.free < enough, disk)
            await asyncio.sleep(wait)

    def _look_once(self) -> Disk:
        """What is free. Removes the reserve if nearly nothing is, and makes it if there is room."""
        disk = self._look(self._directory)
        kept = kept_of(disk, self._kept)
        size = min(_RESERVE_BYTES, kept // _RESERVE_SHARE)
        with self._lock:
            if disk.free < size // 2:
                with suppress(FileNotFoundError):
                    self._reserve.unlink()
                    logger.error(
                        "the disk of %s is full: the broker's reserve is used now", self._directory
                    )
            elif disk.free > kept + size and not (self._is_over or self._reserve.exists()):
                self._make_reserve(size)
        return disk

    def _make_reserve(self, size: int) -> None:
        descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, max(size, 1))
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
