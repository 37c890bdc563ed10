"""The memory of a worker's processes. Only the standard library."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that they are found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> set[int]:
    """Return the pids of this process's descendants."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has ended
            continue
        children.setdefault(parent, []).append(int(directory.name))
    found: set[int] = set()
    pending = [os.getpid()]
    while pending:
        below = set(children.get(pending.pop(), ())) - found
        found |= below
        pending += below
    return found


def pss_mib(others: set[int]) -> float:
    """Return the PSS of this process, its descendants and other pids, in MiB.

    PSS divides a shared page among its processes, so that the sum counts it once.
    """
    kib = 0
    for pid in descendants() | others | {os.getpid()}:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):  # it has ended, or is a zombie
            continue
    return kib / 1024


def peak_mib() -> float:
    """Return this process's peak memory in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM")
