"""Runs one program inside a jail that is there already, for the broker. It runs on the host, as root.

It enters the jail's namespaces, all but the user's, and forks the program there. The program is either a
gateway, which is confined as bubblewrap confines what it starts and then belongs to the jail, or a tool of
the broker's, which is waited for.

The order is a JSON object in the environment variable `ORDER_VARIABLE`, since all users of the host see the
arguments of a program:

- `leader`: a pidfd of the jail's first process.
- `argv`, `env`: the command line, as seen in the jail, and the whole environment.
- `cwd`: the working directory.
- `uid`: the user of a gateway; the real user of a tool, whose effective one stays. null leaves both.
- `descriptors`: those of a gateway, as 1, 2, 3. null for a tool, which inherits all.
- `filter`: a descriptor with the gateway's seccomp filter, or null.
- `pid`: the tool's process id in the jail, or 0 for any.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from . import confinement
from .contract import ORDER_VARIABLE

_ENTERED = ("mnt", "pid", "net", "ipc", "uts", "cgroup")
_LAST_PID = "/proc/sys/kernel/ns_last_pid"
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_FAILED = 124
"""The exit status if the program could not be run."""


def main(order: dict[str, Any]) -> int:
    """Return the exit status of a tool, or 0 when the gateway is started."""
    if not os.read(0, 1):  # the broker has set the limits of this process by now, or has ended
        return _FAILED
    last_pid = os.open(_LAST_PID, os.O_WRONLY | os.O_CLOEXEC)  # the jail's is read-only
    seccomp_filter = None
    if order["filter"] is not None:
        seccomp_filter = os.pread(order["filter"], os.fstat(order["filter"]).st_size, 0)
    confinement.enter(order["leader"], _ENTERED)
    if order["pid"]:
        _wait(_fork(lambda: _set_last_pid(last_pid, order["pid"] - 1)))
    if order["descriptors"] is None:
        return _wait(_fork(lambda: _tool(order)))

    def between() -> int:
        _fork(lambda: _gateway(order, seccomp_filter))
        return 0

    # The process between them ends, so that the jail's first process becomes the gateway's parent.
    return _wait(_fork(between))


def _set_last_pid(descriptor: int, pid: int) -> int:
    os.write(descriptor, str(pid).encode())  # of the namespace of the process that writes
    return 0


def _tool(order: dict[str, Any]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    os.chdir(order["cwd"])
    os.setgroups([])
    if order["uid"] is not None:
        # With the sandbox's real user it may read the limits of its processes, also without
        # CAP_SYS_RESOURCE.
        os.setresgid(order["uid"], -1, -1)
        os.setresuid(order["uid"], -1, -1)
    os.execve(order["argv"][0], order["argv"], order["env"])


def _gateway(order: dict[str, Any], seccomp_filter: bytes | None) -> int:
    null = os.open(os.devnull, os.O_RDONLY)  # that of the jail, where it is restored from
    confinement.place_descriptors([null, *order["descriptors"]])
    os.setsid()
    os.chdir(order["cwd"])
    confinement.become(order["uid"])
    if seccomp_filter is not None:
        confinement.install_filter(seccomp_filter)
    os.execve(order["argv"][0], order["argv"], order["env"])


def _fork(work: Callable[[], int]) -> int:
    if pid := os.fork():
        return pid
    try:
        os._exit(work())
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(_FAILED)


def _wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main(json.loads(os.environ[ORDER_VARIABLE])))
