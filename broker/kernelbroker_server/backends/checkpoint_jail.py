"""A jail whose processes can be saved, and replaced by saved ones.

It has no user namespace, since CRIU saves no processes whose namespaces have different owners. The gateway
is a child of the jail's first process, as it is after it was restored, and a holder keeps the jail
meanwhile. No socket of the broker is open in the jail, except for the connections that a `Handover` sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kernelbroker_kernel.contract import WORKSPACE

from . import bubblewrap, jail, jail_contents, jail_program, procfs, seccomp
from .adopted_jail import AdoptedJail
from .base import LaunchError, SandboxSpec
from .child import readable
from .criu import Criu, CriuRun
from .forked_jail import HOLDER
from .host import Host
from .jail_program import Order
from .process_saver import CheckpointFailed
from .sandbox_record import ProcessId

_HOLDER_TIMEOUT_S = 10.0
_STARTED_TIMEOUT_S = 20.0
_KILLED = 137
_STATUS = 3
"""The gateway's descriptor of the pipe for its exit status."""
_HOLDERS_PID = 2
_TRIES, _PAUSE_S = 250, 0.02


class CheckpointJail:
    """A running jail. It has the methods of `bubblewrap.Jail`.

    Attributes:
        child: the broker's child of bubblewrap. Its output has that of the gateway.
        leader: the host's pid of the first process in the jail.
        files: copies its files.

    Args:
        uid: the user of its processes.
        place: called with the pid of a process before it runs anything of the sandbox, for its limits.
        join: as `place`, for a program of the broker's that is only to be counted with the sandbox.
    """

    def __init__(
        self,
        made: bubblewrap.Jail | AdoptedJail,
        uid: int,
        place: Callable[[int], None],
        join: Callable[[int], None],
    ) -> None:
        self.child = made.child
        self.leader = made.leader
        self.files = jail_contents.JailFiles(made.leader_fd, join)
        self._jail = made
        self._uid = uid
        self._place = place
        self._join = join
        self._holder = _holder_of(made.leader)
        self._gateway: _Gateway | None = None
        self._status: int | None = None
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    def adopt(
        cls,
        leader: AdoptedJail,
        gateway: ProcessId,
        uid: int,
        place: Callable[[int], None],
        join: Callable[[int], None],
    ) -> CheckpointJail:
        """Go on with a jail of an earlier broker. Raises OSError if it has ended."""
        try:
            jail = cls(leader, uid, place, join)
            status = os.open(
                f"/proc/{gateway.pid}/fd/{_STATUS}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
            jail._gateway = _Gateway(gateway.pid, status)
            if not gateway.lives:  # checked afterwards, so that the descriptors are of this process
                raise ProcessLookupError(gateway.pid)
        except LaunchError as error:
            raise ProcessLookupError(str(error)) from error
        jail._ending = asyncio.create_task(jail._end_with(jail._gateway), name="gateway")
        return jail

    @property
    def roots(self) -> tuple[int, ...]:
        """The processes that all others of the jail descend from, and the gateway."""
        return (self.leader, *([] if self._gateway is None else [self._gateway.pid]))

    def exit_status(self) -> int:
        """The gateway's exit status, once `child.exited` is done."""
        return _KILLED if self._status is None else self._status

    def kill(self) -> None:
        self._jail.kill()

    async def gone(self) -> None:
        """Wait until all processes of the jail have ended."""
        if self._ending is not None:
            await asyncio.wait([self._ending])
        await self._jail.gone()

    def close(self) -> None:
        """Close the descriptors. Call it once, after `gone`."""
        if self._gateway is not None:
            self._gateway.close()
        self._jail.close()

    # The gateway.

    async def start_gateway(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the gateway in the jail. Raises LaunchError, OSError."""
        with contextlib.ExitStack() as stack, self._pipes() as (output, status, status_write):
            program = bubblewrap.seccomp_fd(stack, seccomp.filter_for())
            order = Order(
                leader=self._jail.leader_fd,
                argv=[*argv, "--status", str(_STATUS)],
                env=dict(env),
                uid=self._uid,
                descriptors=[output, output, status_write],
                filter=program,
                cwd=WORKSPACE,
            )
            needed = [output, status_write, *([] if program is None else [program])]
            try:
                await jail_program.run(order, needed, self._place, timeout=_STARTED_TIMEOUT_S)
            except jail_program.ProgramFailed as error:
                raise LaunchError(f"the gateway could not be started: {error}") from error
            self._watch(status)

    @contextlib.contextmanager
    def _pipes(self) -> Iterator[tuple[int, int, int]]:
        """The output of the jail, and both ends of a pipe, whose first end stays open if this succeeds."""
        with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
            status, status_write = os.pipe()
            on_failure.callback(os.close, status)
            always.callback(os.close, status_write)
            output = self.child.open_output()
            always.callback(os.close, output)
            yield output, status, status_write
            on_failure.pop_all()

    def _watch(self, status: int) -> None:
        """Find the gateway and wait for its end. Raises LaunchError, OSError."""
        found = set(_children(self.leader)) - {self._holder}
        if len(found) != 1:
            raise LaunchError(f"the gateway ended at once: {self.child.output_tail()}")
        self._gateway = _Gateway(found.pop(), status)
        self._ending = asyncio.create_task(self._end_with(self._gateway), name="gateway")

    async def _end_with(self, gateway: _Gateway) -> None:
        await readable(gateway.pidfd)
        self._status = gateway.status()
        self._jail.kill()

    # Saving and restoring.

    @property
    def pipes(self) -> list[str]:
        """The names of the pipes from the gateway to the broker: its output, its exit status."""
        return [_pipe_name(self.child.output), _pipe_name(self._living.status_pipe)]

    def stopped(self) -> list[int]:
        """The processes that are stopped, by their pids in the jail."""
        return jail_contents.stopped(self._living.pid)

    async def save(self, criu: Criu, images: Path) -> None:
        """Save the gateway with its descendants, which stand still until `go_on`.

        Raises:
            CheckpointFailed, OSError: they run on.
        """
        await self._expect_only_own_sockets()
        self._expect_only_descendants()
        run = CriuRun(criu, self._jail.leader_fd, self._uid, self._join)
        await run.dump(jail_contents.pid_inside(self._living.pid), images)

    def go_on(self, stopped: Sequence[int]) -> None:
        """Let the processes go on, except those with these pids in the jail."""
        for pid in procfs.family(procfs.processes(), self._living.pid):
            with contextlib.suppress(OSError):
                if jail_contents.pid_inside(pid) not in stopped:
                    os.kill(pid, signal.SIGCONT)

    async def clear(self) -> None:
        """End all processes but the holder. Raises CheckpointFailed."""
        gateway = self._living
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.wait([self._ending])
            self._ending = None
        for _ in range(_TRIES):
            left = procfs.family(procfs.processes(), self.leader) - {self.leader, self._holder}
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_PAUSE_S)
        else:
            raise CheckpointFailed("the processes that ran before do not end")
        self._gateway = None
        gateway.close()

    async def restore(self, criu: Criu, images: Path, pipes: Sequence[str]) -> None:
        """Restore saved processes after `clear`. They stand still until `go_on`.

        Args:
            pipes: those of the jail where they were saved.

        Raises:
            CheckpointFailed, OSError: the jail cannot be used any more.
        """
        with self._pipes() as (output, status, status_write):
            run = CriuRun(criu, self._jail.leader_fd, self._uid, self._join)
            await run.restore(images, dict(zip(pipes, (output, status_write), strict=True)))
            try:
                self._watch(status)
            except LaunchError as error:
                raise CheckpointFailed(str(error)) from error
        jail_contents.expect_confined(self._living.pid, self._uid)

    @property
    def _living(self) -> _Gateway:
        """Raises CheckpointFailed."""
        if self._gateway is None:
            raise CheckpointFailed("the gateway has ended")
        return self._gateway

    async def _expect_only_own_sockets(self) -> None:
        """Wait until all connections to the broker are closed. Raises CheckpointFailed."""
        for _ in range(_TRIES):
            if not await asyncio.to_thread(jail_contents.foreign_sockets, self.leader):
                return
            await asyncio.sleep(_PAUSE_S)
        raise CheckpointFailed("a connection to the broker is still open; try again")

    def _expect_only_descendants(self) -> None:
        """Check that all processes would be saved. Raises CheckpointFailed."""
        table = procfs.processes()
        saved = procfs.family(table, self._living.pid) | {self.leader, self._holder}
        if left := procfs.family(table, self.leader) - saved:
            pids = ", ".join(str(jail_contents.pid_inside(pid)) for pid in sorted(left)[:5])
            raise CheckpointFailed(
                f"the session has processes that left their parents, and cannot be saved: {pids}"
            )


class _Gateway:
    def __init__(self, pid: int, status_pipe: int) -> None:
        """Raises OSError: it has ended."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.status_pipe = status_pipe
        os.set_blocking(status_pipe, False)

    def status(self) -> int | None:
        """The exit status that it has written; None if it was killed."""
        with contextlib.suppress(BlockingIOError):
            if written := os.read(self.status_pipe, 1):
                return written[0]
        return None

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.status_pipe)


async def start(
    host: Host,
    spec: SandboxSpec,
    *,
    argv: Sequence[str],
    etc: Path,
    workspace: Path,
    paths: jail.CheckpointPaths,
    host_uid: int,
    place: Callable[[int], None],
    join: Callable[[int], None],
) -> CheckpointJail:
    """Start a jail and a gateway in it, with this command line.

    The other arguments are those of `bubblewrap.start` and of `CheckpointJail`.

    Raises:
        LaunchError, OSError: no process is left.
    """
    made = await bubblewrap.start(
        host,
        spec,
        program=HOLDER,
        holds_input=True,
        etc=etc,
        workspace=workspace,
        egress_socket=None,
        checkpoint=paths,
        host_uid=host_uid,
        place=place,
    )
    try:
        async with asyncio.timeout(_HOLDER_TIMEOUT_S):
            await made.child.first_output()
        if made.child.exited.done():
            raise LaunchError(f"the jail could not be set up: {made.child.output_tail()}")
        running = CheckpointJail(made, host_uid, place, join)
        await running.start_gateway(argv, {**jail.variables(host, spec), "PWD": WORKSPACE})
        return running
    except BaseException:
        made.kill()
        await made.gone()
        made.close()
        raise


def _holder_of(leader: int) -> int:
    """The pid of the holder of a jail. Raises LaunchError."""
    for pid in _children(leader):
        with contextlib.suppress(OSError):
            if jail_contents.pid_inside(pid) == _HOLDERS_PID:
                return pid
    raise LaunchError("the jail has ended")


def _children(parent: int) -> list[int]:
    return [pid for pid, entry in procfs.processes().items() if entry.parent == parent]


def _pipe_name(descriptor: int) -> str:
    return f"pipe:[{os.fstat(descriptor).st_ino}]"
