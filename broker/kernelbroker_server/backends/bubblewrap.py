"""Starts and ends jails with bubblewrap.

Bubblewrap runs as two processes. The child of the broker reports the exit status of the program, which is
the gateway unless that is forked (see `forked_jail.py`). The leader
is the first process of the jail's pid namespace: if it dies, all processes of the jail die. Bubblewrap
waits at its gate, a pipe, until the broker has set the limits of the leader.
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
from .child import Child, both_ends, readable
from .host import Host
from .mounted_project import MountedProject
from .sandbox_layout import UID

_REPORT_TIMEOUT_S = 10.0
_STATUS_BYTES = 4096
_CHILD_PID = re.compile(rb'"child-pid": (\d+)\D')
_EXIT_CODE = re.compile(rb'"exit-code": (\d+)')


class Jail:
    """A running jail.

    Attributes:
        leader: the host's pid of the first process in the jail, the ancestor of all others.
    """

    def __init__(self, child: Child, leader: int, status: int, link: int | None) -> None:
        self.child = child
        self.leader = leader
        self._link = link
        """The other end of the program's standard input, if it is held."""
        self._status = status
        self._leader_fd = os.pidfd_open(leader)

    def exit_status(self) -> int | None:
        """The gateway's exit status, once `child.exited` is done; None if the jail was never set up."""
        with contextlib.suppress(BlockingIOError):
            found = _EXIT_CODE.search(os.read(self._status, _STATUS_BYTES))
            return int(found[1]) if found else None
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._leader_fd, signal.SIGKILL)

    @property
    def leader_fd(self) -> int:
        """A pidfd of the leader, until `close`."""
        return self._leader_fd

    @property
    def roots(self) -> tuple[int, ...]:
        """The processes that all others of the jail descend from."""
        return (self.leader,)

    async def gone(self) -> None:
        """Wait until all processes of the jail have ended."""
        await self.child.wait()
        await readable(self._leader_fd)

    def close(self) -> None:
        """Close the descriptors. Call it once, after `gone`."""
        # If the broker is pid 1 of a container, the leader has become its child.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._leader_fd, os.WEXITED | os.WNOHANG)
        os.close(self._leader_fd)
        os.close(self._status)
        if self._link is not None:
            os.close(self._link)


async def start(
    host: Host,
    spec: SandboxSpec,
    *,
    program: Sequence[str],
    etc: Path,
    workspace: Path,
    egress_socket: Path | None,
    project: MountedProject | None = None,
    pass_fds: Sequence[int] = (),
    holds_input: bool = False,
    user_namespace: int | None = None,
    checkpoint: jail.CheckpointPaths | None = None,
    host_uid: int | None,
    place: Callable[[int], None],
) -> Jail:
    """Start a jail with a program in it.

    Do not cancel this: until bubblewrap has reported the leader, nothing can kill it. It takes some
    milliseconds.

    Args:
        program: its command line, as seen in the jail.
        etc: a directory with the files of `jail.ETC`.
        project: the project of the spec, if there is one.
        pass_fds: descriptors that the program inherits.
        holds_input: the program's standard input stays open until `Jail.close`; otherwise it is at its end.
        user_namespace: the user namespace to make the jail in; by default the broker's.
        checkpoint: for a jail without a user namespace of its own, whose processes can be saved.
        host_uid: the user id of the kernel on the host. Required if `host.root`, else None.
        place: called with the pid of the leader, before the leader runs anything.

    Raises:
        LaunchError, OSError: no process is left.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        status, status_write = _pipe(ours, theirs)
        gate, gate_write = _pipe(theirs, ours)
        maps_users = host.root and checkpoint is None
        stdin = gate if maps_users else subprocess.DEVNULL
        link = gate_write
        if holds_input and not maps_users:
            stdin, link = _pipe(theirs, ours)
        if holds_input and spec.orphan_grace:  # it has no end without the broker
            stdin = both_ends(os.dup(stdin))
            theirs.callback(os.close, stdin)
        info = os.dup(status_write)
        theirs.callback(os.close, info)
        descriptors = jail.Descriptors(
            status=status_write,
            # With --userns-block-fd bubblewrap leaves the gate open in the jail: as standard input.
            gate=0 if maps_users else gate,
            info=info if maps_users else None,
            seccomp=seccomp_fd(theirs, seccomp.filter_for()),
        )
        argv = jail.jail_argv(
            host,
            spec,
            etc=etc,
            workspace=workspace,
            egress_socket=egress_socket,
            project=None if project is None else project.path,
            checkpoint=checkpoint,
            host_uid=None if maps_users else host_uid,
            program=program,
            descriptors=descriptors,
        )
        argv, variables = hide_variables(theirs, argv)
        if user_namespace is not None:
            argv = [*jail.inside(host, user_namespace), *argv]
            pass_fds = [*pass_fds, user_namespace]
        if project is not None:
            argv = [*project.command, *argv]
            pass_fds = [*pass_fds, *project.descriptors]
        child = Child(
            argv,
            env={},  # code in the jail can read bubblewrap's environment
            stdin=stdin,
            pass_fds=[*pass_fds, variables, *(fd for fd in descriptors if fd)],
            outlives=spec.orphan_grace > 0,
        )
        theirs.close()
        try:
            leader = await asyncio.wait_for(_leader(status, child), _REPORT_TIMEOUT_S)
            os.set_blocking(status, False)
            running = Jail(child, leader, os.dup(status), os.dup(link) if holds_input else None)
        except BaseException:
            child.kill()
            await child.wait()
            raise
        try:
            place(leader)
            if maps_users and host_uid is not None:
                _map_users(leader, host_uid)
            os.write(gate_write, b"1")
        except BaseException:
            running.kill()
            await running.gone()
            running.close()
            raise
        return running


async def _leader(status: int, child: Child) -> int:
    """The pid of the leader, which bubblewrap reports before it waits at its gate."""
    report = b""
    while (found := _CHILD_PID.search(report)) is None:
        await readable(status)
        if not (data := os.read(status, _STATUS_BYTES)):
            await child.wait()
            raise LaunchError(f"bubblewrap failed: {child.output_tail()}")
        report += data
    return int(found[1])


def _map_users(pid: int, host_uid: int) -> None:
    """Map the sandbox's user, and root, which bubblewrap needs only until the gateway starts."""
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n{UID} {host_uid} 1\n")


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def seccomp_fd(stack: contextlib.ExitStack, program: bytes | None) -> int | None:
    """A descriptor from which bubblewrap reads the filter, until the stack is closed."""
    if program is None:
        return None
    return _readable(stack, "seccomp", program)


def hide_variables(stack: contextlib.ExitStack, argv: Sequence[str]) -> tuple[list[str], int]:
    """Move the variables of a jail out of its command line, which all users of the host see.

    Returns:
        the command, and the descriptor from which bubblewrap reads them, until the stack is closed.
    """
    begin = argv.index("--clearenv")
    end = begin + 1
    while argv[end] == "--setenv":
        end += 3
    data = b"".join(os.fsencode(word) + b"\0" for word in argv[begin:end])
    fd = _readable(stack, "variables", data)
    return [*argv[:begin], "--args", str(fd), *argv[end:]], fd


def _readable(stack: contextlib.ExitStack, name: str, data: bytes) -> int:
    fd = os.memfd_create(name)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
