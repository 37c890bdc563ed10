"""What /proc tells of processes: their families, their memory, and whose they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Entry(NamedTuple):
    parent: int
    session: int
    resident: int
    """Bytes, those shared with other processes included."""


def processes() -> dict[int, Entry]:
    """Every process that is visible and not a zombie, by pid."""
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            # The name may hold anything, so the fields are counted from behind it (proc(5)).
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                found[pid] = Entry(int(fields[1]), int(fields[3]), int(fields[21]) * _PAGE)
    return found


def family(table: Mapping[int, Entry], leader: int) -> set[int]:
    """The leader, its session and all their descendants, as far as they are in the table.

    The first process of a pid namespace becomes the parent of every orphan in it: its family is all
    that runs in the jail.
    """
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    todo = [leader, *(pid for pid, entry in table.items() if entry.session == leader)]
    members: set[int] = set()
    while todo:
        if (pid := todo.pop()) not in members:
            members.add(pid)
            todo += children.get(pid, [])
    return members & table.keys()


def memory_of(leader: int) -> int:
    """Bytes that the leader's family takes up, a page that several share counted once."""
    return sum(map(_proportional_memory, family(processes(), leader)))


def over_memory(limits: Mapping[int, int]) -> list[int]:
    """The leaders, of those given with a limit in bytes, whose families use more RAM than that."""
    table = processes()
    found = []
    for leader, limit in limits.items():
        members = family(table, leader)
        # The quick sum counts a page once for each process that shares it, the slow one only once.
        if (
            sum(table[pid].resident for pid in members) > limit
            and sum(map(_proportional_memory, members)) > limit
        ):
            found.append(leader)
    return found


def started_in(directory: Path) -> list[int]:
    """Processes of the sandboxes below a directory, found by how they were started.

    A jail names its workspace in its command line, a plain process and what it started in their
    environment.
    """
    path = os.fsencode(directory) + b"/"
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            is_jail = argv[0].endswith(b"bwrap") and any(arg.startswith(path) for arg in argv)
            if is_jail or any(v.startswith(b"KERNELBROKER_WORKSPACE=" + path) for v in variables):
                found.append(pid)
    return found


def _proportional_memory(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names, 4 times a second
