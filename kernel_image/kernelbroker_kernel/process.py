"""One process beside the kernel, with its watchers. `processes.py` has all of them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

from . import environment
from .contract import HOME_OF_E2B
from .descriptors import chunks, wait_until_ready
from .errors import Refused
from .frames import frame
from .process_family import end_family
from .process_watcher import Watcher

KEPT_BYTES = 256 * 1024
"""Of the output that nobody has watched, for each process."""
_LAST_OUTPUT_S = 0.25
"""How long the end of a process waits for output that its children may still write."""
_KILLED_S = 2.0
"""How long the end of a process that is killed is waited for."""
_IN_TERMINAL = 'exec "$@" <>"$0" >&0 2>&0'
"""For /bin/sh, which leads a session: opening the terminal makes it the controlling one."""


@dataclass(slots=True)
class Command:
    """What is started.

    Attributes:
        cwd: relative to the workspace; None for the workspace itself.
        size: columns and rows of a terminal; None for pipes.
        stdin: whether standard input stays open. Otherwise it is empty. A terminal has it always.
        timeout: seconds, after which it is killed; None for no limit.
    """

    cmd: str
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    size: tuple[int, int] | None = None
    stdin: bool = False
    tag: str | None = None
    timeout: float | None = None


class Process:
    """One process, from its start until its end was watched.

    Attributes:
        ended: how it ended; None while it runs.
    """

    def __init__(self, command: Command, on_end: Callable[[Process], None]) -> None:
        self.command = command
        self.ended: dict[str, object] | None = None
        self._on_end = on_end
        self._watchers: list[Watcher] = []
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._room = asyncio.Event()
        self._feeding = asyncio.Lock()
        self._exited = asyncio.Event()
        self._limit: asyncio.TimerHandle | None = None
        self._start(command)
        self.pid = self._popen.pid
        if command.timeout is not None:
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(command.timeout, self._time_out)
        self._readers = [
            asyncio.create_task(self._read(kind, descriptor))
            for kind, descriptor in [*self._outputs.items()]
        ]
        self._following = asyncio.create_task(self._follow())

    def _start(self, command: Command) -> None:
        """Start it. Raises Refused."""
        cwd = _directory(command.cwd)
        env = {**os.environ, **command.env, "PWD": cwd}
        program = shutil.which(command.cmd, path=env.get("PATH"))
        if "/" in command.cmd:
            program = str(Path(cwd, command.cmd))
        if program is None or not Path(program).is_file():
            raise Refused("not_found", f"there is no program {command.cmd!r}")
        argv = [command.cmd, *command.args]
        ours: list[int] = []
        theirs: list[int] = []
        self._outputs: dict[bytes, int] = {}
        self._input: int | None = None
        try:
            if command.size is not None:
                master, slave = os.openpty()
                ours.append(master)
                theirs.append(slave)
                _resize(master, command.size)
                argv = ["/bin/sh", "-c", _IN_TERMINAL, os.ttyname(slave), program, *command.args]
                program = "/bin/sh"
                streams = (slave, slave, slave)
                self._outputs[b"p"] = master
                self._input = os.dup(master)
                ours.append(self._input)
            else:
                stdin = subprocess.DEVNULL
                if command.stdin:
                    stdin, self._input = os.pipe()
                    theirs.append(stdin)
                    ours.append(self._input)
                stdout, stdout_end = os.pipe()
                ours.append(stdout)
                theirs.append(stdout_end)
                stderr, stderr_end = os.pipe()
                ours.append(stderr)
                theirs.append(stderr_end)
                streams = (stdin, stdout_end, stderr_end)
                self._outputs = {b"o": stdout, b"e": stderr}
            for descriptor in ours:
                os.set_blocking(descriptor, False)
            self._popen = subprocess.Popen(
                argv,
                executable=program,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            for descriptor in ours:
                os.close(descriptor)
            reason = getattr(error, "strerror", None) or str(error)
            if getattr(error, "errno", None) == errno.EAGAIN:
                reason = "the sandbox has as many processes as it may have; end some of them"
            raise Refused("conflict", f"{command.cmd!r} does not start: {reason}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    @property
    def summary(self) -> dict[str, object]:
        command = self.command
        size = command.size and {"cols": command.size[0], "rows": command.size[1]}
        return {
            "pid": self.pid,
            "cmd": command.cmd,
            "args": command.args,
            "env": command.env,
            "cwd": command.cwd,
            "size": size or None,
            "tag": command.tag,
        }

    @property
    def is_kept(self) -> bool:
        """Whether there are frames that nobody has watched."""
        return bool(self._kept)

    def watch(self) -> Watcher:
        """A new watcher. The first one after a time without any gets what was kept, also the end."""
        watcher = Watcher(self._kept)
        self._kept.clear()
        self._kept_bytes = 0
        if self.ended is None:
            self._watchers.append(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Remove a watcher. A second call does nothing."""
        with suppress(ValueError):
            self._watchers.remove(watcher)
        self._room.set()

    async def feed(self, data: bytes) -> None:
        """Write to standard input or the terminal, when the process has taken what was written before.

        Raises:
            Refused: there is no open input.
        """
        view = memoryview(data)
        async with self._feeding:
            while view:
                if self._input is None or self._exited.is_set():
                    raise Refused("conflict", f"the standard input of process {self.pid} is closed")
                try:
                    view = view[os.write(self._input, view) :]
                except BlockingIOError:
                    await wait_until_ready(self._input, writing=True, or_else=self._exited)
                except OSError as error:
                    raise Refused("conflict", f"process {self.pid} reads no more input") from error

    async def close_input(self) -> None:
        """Let the process read the end of its standard input; in a terminal, press Ctrl-D."""
        if self.command.size is not None:
            await self.feed(b"\x04")
            return
        async with self._feeding:
            self._close_input()

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its children. Wait for the end of one that is killed.

        With a terminal that is killed, all ends that was started in it: a shell gives each job a group.

        Raises:
            Refused: it has ended.
        """
        if number == signal.SIGKILL and self.command.size is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED_S):
                    while not end_family(self.pid):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        self._signal(number)
        if number == signal.SIGKILL:
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED_S):
                    await self._exited.wait()

    def _signal(self, number: int) -> None:
        if self.ended is not None or self._popen.returncode is not None:
            raise Refused("not_found", f"there is no process {self.pid}")
        try:
            os.killpg(self.pid, number)
        except OSError as error:
            raise Refused("not_found", f"there is no process {self.pid}") from error

    def _time_out(self) -> None:
        with suppress(Refused):
            self._signal(signal.SIGKILL)

    def resize(self, size: tuple[int, int]) -> None:
        """Change the terminal's size. Raises Refused if there is none."""
        if (terminal := self._outputs.get(b"p")) is None:
            raise Refused("conflict", f"process {self.pid} has no terminal")
        _resize(terminal, size)
        self.command.size = size

    def poll(self) -> None:
        """Notice its exit. Called whenever a child of this process has ended."""
        if self._popen.poll() is not None:
            self._exited.set()

    async def _follow(self) -> None:
        """Report the end, when it has exited and its output was read."""
        await self._exited.wait()
        # A process in the background may hold the pipe for ever. It goes on, and its output is dropped.
        await asyncio.wait(self._readers, timeout=_LAST_OUTPUT_S)
        while any(not reader.done() for reader in self._readers) and self._is_blocked():
            # The rest of the output waits for a slow watcher.
            self._room.clear()
            await self._room.wait()
            await asyncio.wait(self._readers, timeout=_LAST_OUTPUT_S)
        if self._limit is not None:
            self._limit.cancel()
        status = self._popen.returncode
        self.ended = {"exit_code": 128 - status if status < 0 else status, "exited": status >= 0}
        if status < 0:
            self.ended["signal"] = _signal_name(-status)
        async with self._feeding:
            self._close_input()
        self._publish(frame(b"x", self.ended))
        self._watchers.clear()
        self._on_end(self)

    async def _read(self, kind: bytes, descriptor: int) -> None:
        try:
            async for data in chunks(descriptor):
                if self.ended is None:
                    self._publish(frame(kind, data))
                while self.ended is None and self._is_blocked():
                    self._room.clear()
                    await self._room.wait()
        finally:
            del self._outputs[kind]
            os.close(descriptor)

    def _is_blocked(self) -> bool:
        return any(watcher.is_full for watcher in self._watchers)

    def taken(self) -> None:
        """Go on after a watcher has taken its frames."""
        self._room.set()

    def _publish(self, data: bytes) -> None:
        for watcher in self._watchers:
            watcher.put(data)
        if not self._watchers:
            self._kept.append(data)
            self._kept_bytes += len(data)
            while self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= len(self._kept.popleft())

    def _close_input(self) -> None:
        if self._input is not None:
            os.close(self._input)
            self._input = None


def _directory(cwd: str | None) -> str:
    """The absolute path of a working directory. Raises Refused."""
    if "\0" in (cwd or ""):
        raise Refused("bad_request", "a working directory has no NUL in it")
    path = Path(environment.WORKSPACE, cwd or "")
    if path.is_relative_to(HOME_OF_E2B) and not Path(HOME_OF_E2B).is_dir():
        # A sandbox without a jail has the workspace in one place only.
        path = Path(environment.WORKSPACE, path.relative_to(HOME_OF_E2B))
    if not path.is_dir():
        raise Refused("not_found", f"working directory {cwd!r}: there is no such directory")
    return str(path)


def _resize(terminal: int, size: tuple[int, int]) -> None:
    columns, rows = size
    ioctl(terminal, TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
