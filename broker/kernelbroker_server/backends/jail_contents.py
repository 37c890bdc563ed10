"""What is in a jail while its processes stand still: their rights, their sockets, their files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import jail_program, procfs, seccomp
from .jail_program import Order
from .process_saver import CheckpointFailed

_TIMEOUT_S = 120.0
_SOCKET_TABLES = ("unix", "tcp", "tcp6", "udp", "udp6", "raw", "raw6", "netlink", "packet")
FILES = ("tmp", "home/sandbox", "dev/shm")
"""The directories of a jail, besides the workspace, in which its processes have files."""
_CLEAR = "find /tmp /home/sandbox /dev/shm -xdev -mindepth 1 -delete; "


def pid_inside(pid: int) -> int:
    """The pid of a process in its own namespace. Raises OSError if it has ended."""
    return int(_status(pid)["NSpid"].split()[-1])


def stopped(root: int) -> list[int]:
    """The descendants of a process that are stopped, by their pids in the jail."""
    found = []
    for pid in procfs.family(procfs.processes(), root):
        with contextlib.suppress(OSError):
            if _status(pid)["State"].startswith(("T", "t")):
                found.append(pid_inside(pid))
    return found


def expect_confined(root: int, uid: int) -> None:
    """Check that all threads below a process have the rights of a sandbox. Raises CheckpointFailed."""
    users = "\t".join([str(uid)] * 4)
    wanted = {
        **dict.fromkeys(("Uid", "Gid"), users),
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
        "Groups": "",
        "NoNewPrivs": "1",
        **({} if seccomp.filter_for() is None else {"Seccomp": "2"}),
    }
    for pid in procfs.family(procfs.processes(), root):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            status = _status(int(thread.name))
            if any(status[name] != value for name, value in wanted.items()):
                raise CheckpointFailed("a process would have other rights than its sandbox")


def foreign_sockets(leader: int) -> set[int]:
    """The sockets that are open in the jail with this first process, and do not belong to it."""
    own: set[int] = set()
    for table in _SOCKET_TABLES:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{leader}/net/{table}").read_text().splitlines()[1:]
            own |= {int(word) for line in lines for word in line.split() if word.isdigit()}
    return {
        int(target[len("socket:[") : -1])
        for pid in procfs.family(procfs.processes(), leader)
        for target in _open_files(pid)
        if target.startswith("socket:[")
    } - own


def _open_files(pid: int) -> Iterable[str]:
    directory = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        for entry in directory.iterdir():
            with contextlib.suppress(OSError):
                yield str(entry.readlink())


class JailFiles:
    """Copies the files of a jail.

    Args:
        leader: a pidfd of its first process.
        join: called with the pid of a process that is to be counted with the sandbox.
    """

    def __init__(self, leader: int, join: Callable[[int], None]) -> None:
        self._leader = leader
        self._join = join

    async def pack(self, archive: Path, directories: Sequence[str], without: Sequence[str]) -> None:
        """Write the files of these directories to a new archive.

        Args:
            without: what is left out, since every sandbox has it.

        Raises:
            CheckpointFailed, OSError
        """
        descriptor = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        excluded = [f"--exclude={path}" for path in without]
        args = ["--create", "--sparse", "--anchored", *excluded]
        await self._tar(args, directories, descriptor)

    async def unpack(self, archive: Path) -> None:
        """Remove the files of `FILES`, and extract what `pack` has written. Raises as `pack`."""
        descriptor = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
        await self._tar(["--extract", "--preserve-permissions"], (), descriptor, before=_CLEAR)

    async def _tar(
        self, args: Sequence[str], directories: Sequence[str], descriptor: int, before: str = ""
    ) -> None:
        # It runs in the jail, so that no link can lead it outside.
        where = [
            "-C",
            "/",
            "-f",
            f"/proc/self/fd/{descriptor}",
            "--numeric-owner",
            "--warning=none",
        ]
        order = Order(
            leader=self._leader,
            argv=["/bin/sh", "-ec", f'{before}exec tar "$@"', "tar", *args, *where, *directories],
            env={"PATH": "/usr/bin:/bin"},
        )
        try:
            await jail_program.run(order, [descriptor], self._join, timeout=_TIMEOUT_S)
        except jail_program.ProgramFailed as error:
            raise CheckpointFailed(f"the files cannot be copied: {error}") from error
        finally:
            os.close(descriptor)


def _status(pid: int) -> dict[str, str]:
    """The lines of proc_pid_status(5) by name. Raises OSError."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
