"""Starts a jail, places it while bubblewrap still waits at its gate, and ends it.

Bubblewrap is two processes: the child that we start and that tells how the jail ended, and in the
jail the first process of its pid namespace, with whose death the whole jail dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from . import jail, seccomp
from .base import LaunchError, SandboxSpec
from .child import Child, readable
from .host import Host
from .inside import UID, gateway_argv

_REPORT_TIMEOUT_S = 10.0
_STATUS_BYTES = 4096
_CHILD_PID = re.compile(rb'"child-pid": (\d+)\D')
_EXIT_CODE = re.compile(rb'"exit-code": (\d+)')


class Jail:
    """A running jail.

    Attributes:
        leader: the host's pid of its first process, the ancestor of all others.
    """

    def __init__(self, child: Child, leader: int, status: int) -> None:
        self.child = child
        self.leader = leader
        self._status = status
        self._leader_fd = os.pidfd_open(leader)

    def exit_status(self) -> int | None:
        """The gateway's exit status, after `child.exited`; None if the jail was never set up."""
        with contextlib.suppress(BlockingIOError):
            found = _EXIT_CODE.search(os.read(self._status, _STATUS_BYTES))
            return int(found[1]) if found else None
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._leader_fd, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until none of its processes is left."""
        await self.child.wait()
        await readable(self._leader_fd)

    def close(self) -> None:
        """The last call, after `gone`."""
        with contextlib.suppress(ChildProcessError):  # it became ours if we are a container's init
            os.waitid(os.P_PIDFD, self._leader_fd, os.WEXITED | os.WNOHANG)
        os.close(self._leader_fd)
        os.close(self._status)


async def start(
    host: Host,
    spec: SandboxSpec,
    *,
    command: Sequence[str],
    etc: Path,
    workspace: Path,
    way_out: Path | None,
    listener: int,
    host_uid: int | None,
    place: Callable[[int], None],
) -> Jail:
    """Start a jail. `place` is called with its leader's pid before anything of it runs.

    `host_uid` is the user that the kernel's code is on the host, given if and only if `host.root`.
    Short, and not to be cancelled: nobody could end a leader that was not reported yet.

    Raises:
        LaunchError, OSError: nothing is left of it.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        status, status_write = _pipe(ours, theirs)
        gate, gate_write = _pipe(theirs, ours)
        info = os.dup(status_write)
        theirs.callback(os.close, info)
        descriptors = jail.Descriptors(
            status=status_write,
            # As root the gate is standard input: bubblewrap leaves that one open in the jail, where
            # it then reads as empty.
            gate=0 if host.root else gate,
            info=info if host.root else None,
            seccomp=_seccomp_fd(theirs),
        )
        argv = jail.jail_argv(
            host,
            spec,
            etc=etc,
            workspace=workspace,
            way_out=way_out,
            gateway=gateway_argv(jail.python_inside(host), command, ("--fd", str(listener)), spec),
            descriptors=descriptors,
        )
        child = Child(
            argv,
            env={},  # bubblewrap's own could be read from inside
            stdin=gate if host.root else subprocess.DEVNULL,
            pass_fds=[fd for fd in (listener, *descriptors) if fd],
        )
        theirs.close()
        try:
            leader = await asyncio.wait_for(_leader(status, child), _REPORT_TIMEOUT_S)
            os.set_blocking(status, False)
            running = Jail(child, leader, os.dup(status))
        except BaseException:
            child.kill()
            await child.wait()
            raise
        try:
            place(leader)
            if host_uid is not None:
                _map_users(leader, host_uid)
            os.write(gate_write, b"1")
        except BaseException:
            running.kill()
            await running.gone()
            running.close()
            raise
        return running


async def _leader(status: int, child: Child) -> int:
    """The pid that bubblewrap reports before it waits at its gate."""
    report = b""
    while (found := _CHILD_PID.search(report)) is None:
        await readable(status)
        if not (data := os.read(status, _STATUS_BYTES)):
            await child.wait()
            raise LaunchError(f"bubblewrap failed: {child.output_tail()}")
        report += data
    return int(found[1])


def _map_users(pid: int, host_uid: int) -> None:
    """Root is there for bubblewrap's own work, which ends before user code begins."""
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n{UID} {host_uid} 1\n")


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _seccomp_fd(stack: contextlib.ExitStack) -> int | None:
    if (program := seccomp.filter_for()) is None:
        return None
    fd = os.memfd_create("seccomp")
    stack.callback(os.close, fd)
    os.write(fd, program)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
