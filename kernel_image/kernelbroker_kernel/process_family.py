"""The processes of a kernel in its sandbox."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_ROUNDS = 10
"""How often new processes are looked for; a process may fork while the others are ended."""


def end_family(leader: int) -> bool:
    """End the descendants of a process, and all processes of its session, but not itself.

    A process that has left both is not found: it ends with the sandbox.

    Returns:
        whether none is left.
    """
    for _ in range(_ROUNDS):
        found = _family(leader)
        if not found:
            return True
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return False


def _family(leader: int) -> set[int]:
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdecimal() or (pid := int(name)) == leader:
            continue
        try:
            stat = Path("/proc", name, "stat").read_text(errors="replace")
        except OSError:  # it has ended
            continue
        state, parent, _, session = stat.rpartition(")")[2].split()[:4]
        if state in "ZX":
            continue
        parents[pid] = int(parent)
        if int(session) == leader:
            found.add(pid)
    known = {leader, *found}
    while more := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= more
    return known - {leader, os.getpid()}
