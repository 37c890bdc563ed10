"""Shell cells. Each runs in a new shell, in the session's workspace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import Any

from .errors import CellError
from .hooks import CellHooks
from .interrupts import uninterrupted
from .streams import outputs

_GRACE_S = 0.5
"""The time that an interrupted shell and its programs have to end."""


def run(hooks: CellHooks, code: str, _name: str | None) -> None:
    """Run the code. Its output goes to the kernel's own. Raises CellError if it fails."""
    program = shutil.which("bash") or "/bin/sh"
    # An argument has at most 128 KiB, and programs would inherit a descriptor other than 0.
    script = os.memfd_create("cell")
    try:
        os.write(script, code.encode(errors="surrogateescape"))
        os.lseek(script, 0, os.SEEK_SET)
        with outputs() as (stdout, stderr):
            process = subprocess.Popen(
                [program, "-c", 'eval "$(cat)" </dev/null'],
                stdin=script,
                process_group=0,
                stdout=stdout,
                stderr=stderr,
            )
    finally:
        os.close(script)
    try:
        status = process.wait()
    except BaseException:
        end(process)
        raise
    hooks.exit_code = status if status >= 0 else 128 - status
    if status < 0:
        raise CellError("ExitStatus", f"the shell was killed by {_signal_name(-status)}")
    if status:
        raise CellError("ExitStatus", f"the shell exited with status {status}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"


@uninterrupted()
def end(process: subprocess.Popen[Any]) -> None:
    """Interrupt a process group, by its first process, and kill what is left."""
    for number, timeout in ((signal.SIGINT, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
