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

_GRACE_S = 0.5
"""How long an interrupted shell and its programs may take to end."""


def run(helper: Helper, code: str, _name: str | None) -> None:
    """Run the code; its output goes where the kernel's own goes. Raises ForeignError for a failure."""
    program = shutil.which("bash") or "/bin/sh"
    # Through a descriptor, since an argument has at most 128 KiB.
    script = os.memfd_create("cell", 0)
    try:
        os.write(script, code.encode(errors="surrogateescape"))
        os.lseek(script, 0, os.SEEK_SET)
        read_and_run = f'eval "$(cat <&{script})" {script}<&-'
        process = subprocess.Popen(
            [program, "-c", read_and_run],
            stdin=subprocess.DEVNULL,
            pass_fds=(script,),
            process_group=0,
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
        name = signal.Signals(-status).name
        raise ForeignError("ExitStatus", f"the shell was killed by {name}")
    if status:
        raise ForeignError("ExitStatus", f"the shell exited with status {status}")


def end(process: subprocess.Popen[Any]) -> None:
    """Interrupt a process, the first of its group, and all that it runs; then kill what is left."""
    for number, patience in ((signal.SIGINT, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
