"""Runs a program, and ends everything that it has started when it ends, or when this is terminated.

    python -I supervise.py PROGRAM ARGUMENT...

What the program leaves behind, in whatever session or process group, becomes a child of this process, which
exits with the program's status, as a shell gives it. Standard library only; it is run by its path.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def main(argv: list[str]) -> int:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program = os.posix_spawnp(argv[0], argv, os.environ, setsigdef=[signal.SIGINT])
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return 126
    try:
        while True:
            ended, status = os.wait()
            if ended == program:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    finally:
        _end_children()


def _end_children() -> None:
    """Kill the children until there are none: those of a killed child become ours."""
    with suppress(ChildProcessError):
        while True:
            for pid in _children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.wait()


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
