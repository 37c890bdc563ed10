"""Reads processes from /proc: their descendants, their memory, and the sandbox they belong to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Entry(NamedTuple):
    parent: int
    session: int
    resident: int
    """Bytes, including pages that are shared with other processes."""


def processes() -> dict[int, Entry]:
    """All visible processes by pid, without zombies."""
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            # The process name may contain spaces and parentheses, so parse what follows it (proc(5)).
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                found[pid] = Entry(int(fields[1]), int(fields[3]), int(fields[21]) * _PAGE)
    return found


def family(table: Mapping[int, Entry], *leaders: int) -> set[int]:
    """The pids of the leaders, of their sessions, and of all their descendants in the table.

    Orphans in a pid namespace become children of its first process. The family of that process is
    therefore the whole jail, except for a forked gateway, whose parent is outside.
    """
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    todo = [*leaders, *(pid for pid, entry in table.items() if entry.session in leaders)]
    members: set[int] = set()
    while todo:
        if (pid := todo.pop()) not in members:
            members.add(pid)
            todo += children.get(pid, [])
    return members & table.keys()


def memory_of(*leaders: int) -> int:
    """Bytes that the leaders' family uses. A page that processes share is counted once."""
    return sum(map(_proportional_memory, family(processes(), *leaders)))


def processor_time_of(*leaders: int) -> float:
    """Seconds of processor time that the leaders' family has used, with children that have ended."""
    ticks = 0
    for pid in family(processes(), *leaders):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / _TICKS_PER_S


def over_memory(limits: Mapping[tuple[int, ...], int]) -> list[tuple[int, ...]]:
    """The leaders whose families use more memory than their limit.

    Args:
        limits: bytes by the leaders of a family.
    """
    table = processes()
    found = []
    for leaders, limit in limits.items():
        members = family(table, *leaders)
        # The resident sizes are quick to read, but count a shared page once for each process.
        if (
            sum(table[pid].resident for pid in members) > limit
            and sum(map(_proportional_memory, members)) > limit
        ):
            found.append(leaders)
    return found


def started_in(directory: Path) -> list[int]:
    """The pids of processes of the sandboxes below a directory.

    A jail has the path of its workspace in its command line; a plain process and its children have it in
    their environment.
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
