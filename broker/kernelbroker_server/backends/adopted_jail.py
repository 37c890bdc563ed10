"""A jail that an earlier broker has started. It has the methods of `bubblewrap.Jail`.

The broker is not the parent of its processes, so their exit status is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

from .child import Output, readable
from .sandbox_record import ProcessId

log = logging.getLogger(__name__)

STATUS = 137


class AdoptedChild:
    """The end of a jail, in place of the child that runs bubblewrap."""

    def __init__(self, pid: int) -> None:
        """Read the output of this process, which would block when the pipe is full."""
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._output: Output | None = None
        try:
            pipe = os.open(f"/proc/{pid}/fd/1", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.warning("The output of an adopted sandbox cannot be read: %s", error)
        else:
            self._output = Output(pipe)

    @property
    def output(self) -> int:
        """The pipe from which the output is read. Raises OSError."""
        if self._output is None:
            raise OSError("the output cannot be read")
        return self._output.pipe

    def open_output(self) -> int:
        """A new descriptor that writes to the output."""
        return os.open(f"/proc/self/fd/{self.output}", os.O_RDWR | os.O_CLOEXEC)

    def output_tail(self) -> str:
        return "" if self._output is None else self._output.tail()

    def end(self) -> None:
        """All processes have ended. Call it once."""
        if self._output is not None:
            self._output.close()
        self.exited.set_result(STATUS)


class AdoptedJail:
    """A running jail of an earlier broker.

    Attributes:
        leader: the host's pid of the first process in the jail.
        roots: the processes that all others of the jail descend from.
    """

    def __init__(self, leader: ProcessId, gateway: ProcessId | None) -> None:
        """Raises OSError: one of the processes has ended."""
        self.leader = leader.pid
        self.roots: tuple[int, ...] = (leader.pid, *([] if gateway is None else [gateway.pid]))
        self._leader_fd = _open(leader)
        self._gateway_fd: int | None = None
        if gateway is not None:
            try:
                self._gateway_fd = _open(gateway)
            except OSError:
                os.close(self._leader_fd)
                raise
        self.child = AdoptedChild(self.roots[-1])
        self._ending = asyncio.create_task(self._wait(), name="adopted jail")

    @property
    def leader_fd(self) -> int:
        """A pidfd of the leader, until `close`."""
        return self._leader_fd

    def exit_status(self) -> int:
        return STATUS

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._leader_fd, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until all processes of the jail have ended."""
        await asyncio.shield(self._ending)

    def close(self) -> None:
        """Close the descriptors. Call it once, after `gone`."""
        os.close(self._leader_fd)
        if self._gateway_fd is not None:
            os.close(self._gateway_fd)

    async def _wait(self) -> None:
        if self._gateway_fd is not None:  # the jail does not end with it
            await readable(self._gateway_fd)
            self.kill()
        await readable(self._leader_fd)
        self.child.end()


def _open(process: ProcessId) -> int:
    """Return a pidfd. Raises OSError if the process has ended."""
    pidfd = os.pidfd_open(process.pid)
    if not process.lives:  # checked afterwards, so that the descriptor is of this process
        os.close(pidfd)
        raise ProcessLookupError(process.pid)
    return pidfd
