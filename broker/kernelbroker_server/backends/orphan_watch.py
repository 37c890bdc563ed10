"""Ends the sandboxes of a broker that has died, unless a broker adopts them within their grace.

The watch is a process beside the broker, which no sandbox sees. It starts with the broker, and holds the
lock `watch` of the broker's directory, so that other brokers leave the sandboxes alone. When the broker has
died, it counts their grace. A broker that adopts them takes the lock of the dead one: the watch then ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import procfs, sandbox_record

LOCK, WATCH_LOCK = "lock", "watch"
_POLL_S = 0.2


def start(directory: Path) -> subprocess.Popen[bytes]:
    """Start the watch over the sandboxes of a broker, which is this process.

    Args:
        directory: that of the broker, below data_dir.

    Raises:
        OSError
    """
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(directory), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # a signal for the broker's group must not end it
    )


def watch(directory: Path, broker: int) -> None:
    """Wait for the end of the broker, then for the grace, and end what was not adopted."""
    try:
        own = os.open(directory / WATCH_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the broker has ended in order
        return
    fcntl.flock(own, fcntl.LOCK_EX)  # the watch of an earlier broker may hold it for a moment
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(broker)
        if os.getppid() == broker:  # otherwise it has ended before
            select.select([pidfd], [], [])
    died_at = time.monotonic()
    while True:
        try:  # each time, since a broker that takes the sandboxes over may replace the file
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except FileNotFoundError:  # without their directory nobody can adopt them
            _end_in(directory / "sandboxes")
            return
        left = _end_old(directory / "sandboxes", time.monotonic() - died_at)
        os.close(lock)
        if not left:
            return
        time.sleep(_POLL_S)


def _end_old(sandboxes: Path, alone_for: float) -> int:
    """End the sandboxes whose grace is over. Returns how many are left."""
    left = 0
    if not sandboxes.exists():  # without their directory nobody can adopt them
        _end_in(sandboxes)
    with contextlib.suppress(FileNotFoundError):
        for sandbox in sandboxes.iterdir():
            record = sandbox_record.read(sandbox)
            if record is not None and alone_for < record.grace:
                left += any(each.lives for each in (record.leader, record.gateway) if each)
                continue
            _end_in(sandbox)
    return left


def _end_in(directory: Path) -> None:
    for pid in procfs.started_in(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
