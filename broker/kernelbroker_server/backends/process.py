"""The fallback where no jail can be had: the gateway as a plain process, with no boundary at all.

User code then is whoever runs the broker, sees the host's files, and finds its workspace by its
real path in `KERNELBROKER_WORKSPACE`. What remains: a clean environment, limits as far as they go
without a jail, death with the broker, and that everything started is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelbroker_kernel.contract import KERNEL_SOCKET_BYTES

from . import procfs
from .base import SandboxSpec
from .child import Child
from .host import Host
from .inside import environment, gateway_argv, python_environment

HOME = "home"
"""Beside the workspace; the kernel's own sockets lie in it."""

# Sets the signal that ends this process with its parent (prctl(2), PR_SET_PDEATHSIG), and becomes
# the command, unless the parent has died before.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_KILL_ROUNDS = 20
_ID_CHARS = 12  # of the ids that a pool gives to its sandboxes


class Process:
    """A running gateway outside of any jail; `leader` is its pid, and that of its session."""

    def __init__(self, child: Child, directory: Path) -> None:
        self.child = child
        self.leader = child.pid
        self._directory = directory

    def exit_status(self) -> int | None:
        return self.child.exited.result()

    def kill(self) -> None:
        """End it and all it started, but for what has covered its tracks."""
        for _ in range(_KILL_ROUNDS):
            alive = set(procfs.started_in(self._directory))
            if not self.child.exited.done():  # afterwards the pid may be another's
                alive |= procfs.family(procfs.processes(), self.leader)
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not alive:
                return

    async def gone(self) -> None:
        await self.child.wait()

    def close(self) -> None:
        pass


def longest_socket_path(sandboxes: Path) -> int:
    """Bytes of the paths of a kernel's own sockets, in the home of a sandbox below `sandboxes`."""
    return len(os.fsencode(sandboxes / ("0" * _ID_CHARS) / HOME)) + KERNEL_SOCKET_BYTES


async def start(
    host: Host,
    spec: SandboxSpec,
    *,
    command: Sequence[str],
    library: Path,
    directory: Path,
    listener: int,
    place: Callable[[int], None],
) -> Process:
    """Start a gateway in the directory of its sandbox, which holds `workspace` and `home`.

    `place` is called with its pid while Python still starts. Raises OSError.
    """
    python, home, workspace = host.python, directory / HOME, directory / "workspace"
    variables = python_environment(python, library) | environment(
        spec, home=home, tmp=home, workspace=workspace, wheels=spec.wheels, library=library
    )
    argv = [str(python), "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    child = Child(
        [*argv, *gateway_argv(python, command, ("--fd", str(listener)), spec)],
        env=variables,
        cwd=str(workspace),
        pass_fds=[listener],
    )
    running = Process(child, directory)
    try:
        place(child.pid)
    except BaseException:
        running.kill()
        await running.gone()
        raise
    return running
