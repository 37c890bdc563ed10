"""A child process on the event loop: its exit status, from a pidfd, and the end of its output.

`asyncio.subprocess` is no faster (median spawn and exit of /bin/true: 1.1 to 1.6 ms with either). It keeps
a thread for each process in Python 3.11, and stops reading at a limit: a process that writes a lot then
blocks, and `Process.wait` does not return even after it was killed. `PidfdChildWatcher` avoids only the
threads, and is global and deprecated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

_TAIL_BYTES = 8 * 1024
_READ_BYTES = 64 * 1024
_READ_PAUSE_S = 0.1
"""Pause after each full read, so that a process that writes without end is slowed down."""


class Output:
    """The end of what is written to a pipe. It is read without end, so that nobody blocks who writes."""

    def __init__(self, pipe: int) -> None:
        """Take ownership of the reading end, which must not block."""
        self.pipe = pipe
        self.written = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tail = b""
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(pipe, self._on_readable)

    def tail(self) -> str:
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        """Read what is there, and close the pipe. Call it once."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self.pipe)
        self._read()
        os.close(self.pipe)

    def _on_readable(self) -> None:
        size = self._read()
        if size == 0:
            self._loop.remove_reader(self.pipe)
        elif size == _READ_BYTES:
            self._loop.remove_reader(self.pipe)
            self._pause = self._loop.call_later(
                _READ_PAUSE_S, self._loop.add_reader, self.pipe, self._on_readable
            )

    def _read(self) -> int | None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.pipe, _READ_BYTES)
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            self.written.set()
            return len(data)
        return None


class Child:
    """A started process.

    Start it from the main thread: the parent-death signal is sent when the thread that started it ends.

    Attributes:
        exited: the exit status as in a shell: 128 plus the number of the signal if a signal killed it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str = "/",
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        outlives: bool = False,
    ) -> None:
        """Raises OSError.

        Args:
            outlives: the process may go on without the broker, and must then still be able to write.
        """
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._output_mode = os.O_RDWR if outlives else os.O_WRONLY
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as always:
            pipe, output = os.pipe()
            on_failure.callback(os.close, pipe)
            if outlives:
                output = both_ends(output)
            always.callback(os.close, output)
            os.set_blocking(pipe, False)
            # A new process session: Ctrl-C in the broker's terminal must not reach it.
            self._process = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                start_new_session=True,
                umask=0o022,
            )
            on_failure.callback(self._process.wait)
            on_failure.callback(self._process.kill)
            self.pid = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
            on_failure.pop_all()
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._output = Output(pipe)

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Wait for the exit. Cancelling this does not cancel `exited`."""
        return await asyncio.shield(self.exited)

    def open_output(self) -> int:
        """A new descriptor that writes to its output; it outlives the process."""
        return os.open(f"/proc/self/fd/{self._output.pipe}", self._output_mode | os.O_CLOEXEC)

    @property
    def output(self) -> int:
        """The pipe from which its output is read."""
        return self._output.pipe

    async def first_output(self) -> None:
        """Wait until it has written something or has ended."""
        await self._output.written.wait()

    def output_tail(self) -> str:
        """The last few KiB of its output, for log and error messages."""
        return self._output.tail()

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()  # does not block, since the process has ended
        self._output.close()
        self.exited.set_result(128 - code if code < 0 else code)
        self._output.written.set()


def both_ends(pipe: int) -> int:
    """Replace a descriptor of a pipe by one that reads and writes: the pipe never ends then."""
    try:
        return os.open(f"/proc/self/fd/{pipe}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(pipe)


def signal_name(status: int) -> str | None:
    """The name of the signal in an exit status as in a shell; None if there is no signal in it."""
    with contextlib.suppress(ValueError):
        return signal.Signals(status - 128).name
    return None


async def readable(fd: int) -> None:
    """Wait until a descriptor is readable. A pidfd is readable when its process has ended."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)
