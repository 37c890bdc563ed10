"""Runs a program of the project in the cell of an operation.

The program is not a child of the kernel but of a shell in between, so that code that kills its parent
does not reach the kernel. What the program leaves behind in its process group ends with it. Its output
is the cell's.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..shell import end
from ..streams import outputs
from . import go_report, programs, project

MAX_OUTPUT_BYTES = 2 * 1024**2
"""Of a program that is passed on. The broker's own limit may be lower."""
_POLL_S = 0.1
_READ_BYTES = 64 * 1024
_MAX_LINE = 256 * 1024
_IN_BETWEEN = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]


def run_program(
    argv: list[str],
    env: dict[str, str],
    report: str = "",
    add: Callable[[Any], None] | None = None,
    deadline: float | None = None,
) -> int:
    """Run a program of the project, and return its exit status as a shell gives it.

    Args:
        report: how it reports tests: see `testing.Command`.
        add: gets each record of the report.
        deadline: of `time.monotonic`, at which it is ended.
    """
    root = project.root()
    programs.find("sh")
    environ = {**os.environ, **env, "PROJECT_PATH": project.SHOWN_ROOT, "TERM": "dumb"}
    if not Path(project.SHOWN_ROOT).is_dir():  # a sandbox without a jail
        environ["PROJECT_PATH"] = str(root)
    with ExitStack() as ours, ExitStack() as theirs, outputs() as shown:
        ends = []
        for _ in range(3):
            reading, writing = os.pipe()
            ours.callback(os.close, reading)
            theirs.callback(os.close, writing)
            os.set_blocking(reading, False)
            ends.append((reading, writing))
        (report_end, report_in), (stdout_end, stdout_in), (stderr_end, stderr_in) = ends
        environ["KERNELBROKER_REPORT"] = str(report_in)
        process = subprocess.Popen(
            [*_IN_BETWEEN, *argv],
            cwd=root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=report_in if report == "go" else stdout_in,
            stderr=stderr_in,
            pass_fds=[report_in] if report == "lines" else [],
            process_group=0,
        )
        try:
            theirs.close()
            output = Output(MAX_OUTPUT_BYTES)
            lines = Lines(add or (lambda _: None), output if report == "go" else None, shown[0])
            takers: dict[int, Callable[[bytes], None]] = {
                report_end: lines.take,
                stdout_end: lambda data: output.write(shown[0], data),
                stderr_end: lambda data: output.write(shown[1], data),
            }
            follow(process, takers, lambda: deadline is not None and time.monotonic() > deadline)
            output.end(shown[1])
            if process.poll() is None:
                end(process)
            status = process.wait()
        finally:
            end(process)
    return status if status >= 0 else 128 - status


def follow(
    process: subprocess.Popen[Any],
    takers: dict[int, Callable[[bytes], None]],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Pass on what the pipes bring, until the process has ended and they are empty, or `is_over`."""
    left, ended = dict(takers), False
    while (left or not ended) and not is_over():
        if left:
            ready, _, _ = select.select([*left], [], [], 0 if ended else _POLL_S)
        else:
            ready = []
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        if ended and not ready:
            return  # a program that was left behind may hold a pipe for ever
        for descriptor in ready:
            if data := os.read(descriptor, _READ_BYTES):
                left[descriptor](data)
            else:
                del left[descriptor]
        if not ended and (ended := process.poll() is not None):
            with suppress(ProcessLookupError):  # or what it has left behind could write without end
                os.killpg(process.pid, signal.SIGKILL)


class Output:
    """Passes on so many bytes of output, and drops the rest."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._dropped = 0

    def write(self, descriptor: int | None, data: bytes) -> None:
        view = memoryview(data)[: self._room]
        self._room -= len(view)
        self._dropped += len(data) - len(view)
        while view and descriptor is not None:
            view = view[os.write(descriptor, view) :]

    def end(self, descriptor: int | None) -> None:
        if self._dropped and descriptor is not None:
            os.write(descriptor, f"\n[{self._dropped:,} bytes of output were dropped]\n".encode())


class Lines:
    """The lines of a report, which is one of ours, or that of `go test` if there is an output for its
    texts."""

    def __init__(
        self, add: Callable[[Any], None], output: Output | None, descriptor: int | None
    ) -> None:
        self._add = add
        self._output = output
        self._descriptor = descriptor
        self._rest = b""
        self._go = go_report.GoReport()

    def take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_MAX_LINE]
        for line in lines:
            if self._output is None:
                record = decoded(line)
            else:
                record, text = self._go.read(line)
                self._output.write(self._descriptor, text.encode(errors="replace"))
            if record is not None:
                self._add(record)


def decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
