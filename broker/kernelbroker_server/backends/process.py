"""Runs a gateway as a plain process without isolation, where jails do not work.

User code runs as the broker's user and can read the host's files. `KERNELBROKER_WORKSPACE` is the path of
its workspace. The process still gets a clean environment and the limits that work without a jail. It ends
with its sandbox and with the broker.
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
from .sandbox_layout import environment, gateway_argv, python_environment

HOME = "home"
"""The name of the home directory, beside the workspace. It has the sockets of the kernel."""

# Sets PR_SET_PDEATHSIG (prctl(2)), so that this process dies with its parent, and then runs the command.
# Exits if the parent is already dead.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_KILL_ROUNDS = 20
_ID_CHARS = 12  # the length of a sandbox's id


class Process:
    """A running gateway without a jail.

    Attributes:
        leader: its pid, which is also the id of its process session.
    """

    def __init__(self, child: Child, directory: Path) -> None:
        self.child = child
        self.leader = child.pid
        self._directory = directory

    @property
    def roots(self) -> tuple[int, ...]:
        """The processes that all others descend from."""
        return (self.leader,)

    def exit_status(self) -> int | None:
        return self.child.exited.result()

    def kill(self) -> None:
        """Kill it and its descendants. Processes that hide their origin survive."""
        for _ in range(_KILL_ROUNDS):
            alive = set(procfs.started_in(self._directory))
            if not self.child.exited.done():  # after its exit the pid may be reused
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
    """The length in bytes of the longest socket path of a kernel in a sandbox below `sandboxes`."""
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
    """Start a gateway.

    Args:
        directory: the directory of the sandbox, with the subdirectories `workspace` and `home`.
        place: called with the pid as soon as the process exists.

    Raises:
        OSError
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
