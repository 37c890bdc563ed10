"""Processes beside the kernel: started, fed, watched and ended by the broker.

A process belongs to the sandbox, with its confinement, and ends with it. It leads a session and a
process group of its own, so that a signal reaches its children as well. Its output goes to its watchers,
all of whom get every byte: the slowest one slows the process down, as a pipe does. While nobody watches,
the last KEPT_BYTES are kept for the next watcher, and the process goes on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

from .errors import Refused
from .process import Command, Process
from .process_watcher import Watcher

MAX_PROCESSES = 256
"""Of a sandbox at a time; its own limit of processes may be lower."""
MAX_ENDED = 64
"""Processes that have ended unwatched, whose output and status are kept."""


class Processes:
    """All processes that the broker has started in this sandbox, by process id."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self._ended: dict[int, Process] = {}
        """Those whose end nobody has watched."""
        self._is_notified = False

    def start(self, command: Command) -> tuple[Process, Watcher]:
        """Start a process, and watch it from its first byte. Raises Refused."""
        if len(self._running) >= MAX_PROCESSES:
            raise Refused("conflict", f"{MAX_PROCESSES} processes run; end one of them first")
        if not self._is_notified:
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._poll)
            self._is_notified = True
        process = Process(command, self._on_end)
        self._ended.pop(process.pid, None)
        self._running[process.pid] = process
        process.poll()  # the signal may have come before it was known
        return process, process.watch()

    def list(self) -> list[Process]:
        """Those that run, in the order of their start."""
        return list(self._running.values())

    def watch(self, pid: int) -> tuple[Process, Watcher]:
        """Watch a process that runs, or that has ended unwatched. Raises Refused."""
        if (ended := self._ended.pop(pid, None)) is not None:
            return ended, ended.watch()
        process = self[pid]
        return process, process.watch()

    def __getitem__(self, pid: int) -> Process:
        if (process := self._running.get(pid)) is None:
            raise Refused("not_found", f"there is no process {pid}")
        return process

    def _poll(self) -> None:
        for process in self.list():
            process.poll()

    def _on_end(self, process: Process) -> None:
        del self._running[process.pid]
        if process.is_kept:
            self._ended[process.pid] = process
            while len(self._ended) > MAX_ENDED:
                self._ended.pop(next(iter(self._ended)))


def environment_of(extra: Mapping[str, str]) -> dict[str, str]:
    """Check environment variables. Raises Refused."""
    for name, value in extra.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise Refused(
                "bad_request",
                f"environment variable {name!r}: no empty name, no '=' in it, no NUL",
            )
    return dict(extra)
