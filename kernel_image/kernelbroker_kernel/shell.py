"""Shell cells: each is a shell of its own, in the session's workspace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import Any

from .foreign import ForeignError
from .helper import Helper
from .streams import outputs

_GRACE_S = 0.5
"""How long an interrupted shell and its programs may take to end."""


def run(helper: Helper, code: str, _name: str | None) -> None:
    """Run the code; its output goes where the kernel's own goes. Raises ForeignError for a failure."""
    program = shutil.which("bash") or "/bin/sh"
    # Not as an argument, which has at most 128 KiB; and by no descriptor that its programs would see.
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
    helper.exit_code = status if status >= 0 else 128 - status
    if status < 0:
        raise ForeignError("ExitStatus", f"the shell was killed by {_signal_name(-status)}")
    if status:
        raise ForeignError("ExitStatus", f"the shell exited with status {status}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"


def end(process: subprocess.Popen[Any]) -> None:
    """Interrupt a process, the first of its group, and all that it runs; then kill what is left."""
    for number, patience in ((signal.SIGINT, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
