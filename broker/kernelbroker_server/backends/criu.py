"""Runs CRIU, which saves processes to files and restores them, inside a jail.

CRIU runs as root in the namespaces of the jail. It reads its own program, its libraries and the images
through descriptors of directories that no sandbox sees.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import jail_program
from .jail_program import Order
from .process_saver import CheckpointFailed

_TIMEOUT_S = 120.0
_CHECK_TIMEOUT_S = 20.0
_GHOST_LIMIT = "256M"
"""Of a file that is open and has no name any more, as far as it is saved."""
_LOG = "criu.log"
_ERROR = re.compile(r"Error \([^)]*\): *(.*)")
_HARMLESS = "rlimit:"
"""CRIU would like to have more descriptors than the machine allows."""
_LOG_BYTES = 256 * 1024
_MESSAGE_CHARS = 300
_PROCESS = re.compile(r"core-(\d+)\.img")
_FIRST_PID, _PIDS = 300, 64
"""Process ids of CRIU itself while it restores others. These have those that they had."""
_COMMON = (
    "--manage-cgroups=ignore",
    "--file-locks",
    # Between processes of the sandbox, since it has no other network. All of them are stopped.
    "--tcp-established",
    *("--network-lock", "skip"),
)


@dataclass(frozen=True, slots=True)
class Criu:
    """The program.

    Attributes:
        path: the program, or a directory with a Debian system that has it, with its libraries.
    """

    path: Path

    @classmethod
    def find(cls, name: str) -> Criu | None:
        """Find it by its name in PATH, or by the path of the program or of the directory."""
        if Path(name).is_dir():
            return cls(Path(name).absolute())
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        return None if found is None else cls(Path(found).absolute())

    def command(self, at: str) -> list[str]:
        """The beginning of its command line. Raises CheckpointFailed.

        Args:
            at: where `path` is seen by the process that runs it.
        """
        if not self.path.is_dir():
            return [at]
        found = []
        for pattern in ("usr/lib*/ld-linux*.so.*", "usr/lib/*-linux-gnu", "usr/sbin/criu"):
            paths = sorted(self.path.glob(pattern))
            if not paths:
                raise CheckpointFailed(f"{self.path} has no {pattern}")
            found.append(f"{at}/{paths[0].relative_to(self.path)}")
        loader, libraries, program = found
        return [loader, "--library-path", libraries, program]

    def learn_kernel(self, bwrap: str, target: Path) -> None:
        """Write what it finds out about the kernel to a file, which jails see. Blocks.

        In a jail it cannot find out by itself.

        Raises:
            CheckpointFailed, OSError
        """
        command = [*self.command(str(self.path)), "check", "--no-default-config", "-v1"]
        script = 'file=$1; shift; "$@" && cat /run/criu.kdat >"$file"'
        own_run = [bwrap, "--dev-bind", "/", "/", "--tmpfs", "/run", "--die-with-parent", "--"]
        try:
            done = subprocess.run(
                [*own_run, "/bin/sh", "-c", script, "sh", f"{target}.new", *command],
                capture_output=True,
                text=True,
                timeout=_CHECK_TIMEOUT_S,
            )
        except subprocess.SubprocessError as error:
            raise CheckpointFailed(f"criu check: {error}") from error
        if done.returncode != 0:
            reason = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise CheckpointFailed(f"criu check: {reason[:_MESSAGE_CHARS]}")
        Path(f"{target}.new").chmod(0o644)
        Path(f"{target}.new").replace(target)


class CriuRun:
    """How CRIU is run in one jail.

    Args:
        leader: a pidfd of the jail's first process.
        uid: the user of its processes.
        join: called with the pid of a process that is to be counted with the sandbox.
    """

    def __init__(self, criu: Criu, leader: int, uid: int, join: Callable[[int], None]) -> None:
        self._criu = criu
        self._leader = leader
        self._uid = uid
        self._join = join

    async def dump(self, root: int, images: Path) -> None:
        """Save a process of the jail with its descendants, which all stay stopped.

        Args:
            root: its pid in the jail.
            images: an empty directory.

        Raises:
            CheckpointFailed: they run on.
        """
        options = ("--leave-stopped", "--ghost-limit", _GHOST_LIMIT)
        await self._run(["dump", "--tree", str(root), *options], images, (), lambda _: None)

    async def restore(self, images: Path, pipes: Mapping[str, int]) -> None:
        """Restore the processes in the images, which stay stopped.

        Args:
            pipes: a descriptor in place of each pipe that led to the broker, by its name.

        Raises:
            CheckpointFailed
        """
        args = ["restore", "--restore-detached", "--leave-stopped"]
        for name, descriptor in pipes.items():
            args += ["--inherit-fd", f"fd[{descriptor}]:{name}"]
        pid = free_pid(_processes(images))
        await self._run(args, images, [*pipes.values()], self._join, pid)

    async def _run(
        self,
        args: Sequence[str],
        images: Path,
        descriptors: Sequence[int],
        place: Callable[[int], None],
        pid: int = 0,
    ) -> None:
        with contextlib.ExitStack() as opened:
            program, directory = (_open(opened, path) for path in (self._criu.path, images))
            at = f"/proc/self/fd/{directory}"
            argv = self._criu.command(f"/proc/self/fd/{program}")
            argv += [args[0], "--no-default-config", "-v1", "-D", at, "-W", at, "-o", _LOG]
            order = Order(
                leader=self._leader,
                argv=[*argv, *_COMMON, *args[1:]],
                env={},
                uid=self._uid,
                pid=pid,
            )
            needed = [program, directory, *descriptors]
            try:
                await jail_program.run(order, needed, place, timeout=_TIMEOUT_S)
            except jail_program.ProgramFailed as error:
                raise CheckpointFailed(_reason(images) or str(error)) from error


def free_pid(used: set[int]) -> int:
    """A process id behind which there are enough that are not used."""
    pid = _FIRST_PID
    for each in sorted(used):
        if pid <= each < pid + _PIDS:
            pid = each + 1
    return pid


def _processes(images: Path) -> set[int]:
    """The ids of all threads in the images."""
    return {int(found[1]) for path in images.iterdir() if (found := _PROCESS.fullmatch(path.name))}


def _reason(images: Path) -> str:
    """The first error in the log of a run."""
    with contextlib.suppress(OSError), (images / _LOG).open("rb") as log:
        for line in log.read(_LOG_BYTES).decode(errors="replace").splitlines():
            if (found := _ERROR.search(line)) and not found[1].startswith(_HARMLESS):
                return found[1][:_MESSAGE_CHARS]
    return ""


def _open(stack: contextlib.ExitStack, path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor
