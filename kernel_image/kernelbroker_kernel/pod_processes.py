"""The processes of a sandbox that is a Pod: its gateway, what they use, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from pathlib import Path
from typing import Any

_OUTPUT_BYTES = 4096
_KILL_S = 5.0


class Child:
    """The gateway.

    Attributes:
        ended: resolves with its exit status as a shell has it.
        restarted: it ran in an earlier container of the Pod, and does not run in this one.
    """

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.restarted = False
        self._pid: int | None = None
        self._output = bytearray()
        self._reading = -1

    def start(
        self, argv: list[str], environ: dict[str, str], limits: list[tuple[int, int]]
    ) -> None:
        """Start it; `limits` are resources and their values."""
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                for kind, value in limits:
                    resource.setrlimit(kind, (value, value))
                os.dup2(writing, 1)
                os.dup2(writing, 2)
                for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(argv[0], argv, environ)
            except BaseException as error:
                os.write(2, f"{argv[0]}: {error}\n".encode())
            finally:
                os._exit(125)
        os.close(writing)
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, self._read, reading)
        self._reading = reading

    def reap(self) -> None:
        """Collect all processes that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid and not self.ended.done():
                self._read(self._reading)  # what it wrote last
                code = os.waitstatus_to_exitcode(status)
                self.ended.set_result(code if code >= 0 else 128 - code)

    @property
    def output(self) -> str:
        return self._output.decode(errors="replace").strip()

    def _read(self, reading: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reading, 65536):
                self._output += data
                del self._output[:-_OUTPUT_BYTES]
            asyncio.get_running_loop().remove_reader(reading)


def usage() -> dict[str, Any]:
    """What the container uses, from its control group; see `POD_USAGE_PATH`."""
    root = Path("/sys/fs/cgroup")
    is_v2 = (root / "cgroup.controllers").exists()
    memory = root if is_v2 else root / "memory"
    found: dict[str, Any] = {"oom_kills": 0}
    with contextlib.suppress(OSError, ValueError):
        name = "memory.current" if is_v2 else "memory.usage_in_bytes"
        found["memory"] = int((memory / name).read_text())
        found["memory_stat"] = _numbers(memory / "memory.stat")
    with contextlib.suppress(OSError, ValueError):
        if is_v2:
            found["cpu_s"] = _numbers(root / "cpu.stat")["usage_usec"] / 1e6
        else:
            found["cpu_s"] = int((root / "cpuacct" / "cpuacct.usage").read_text()) / 1e9
    with contextlib.suppress(OSError, ValueError):
        events = _numbers(memory / ("memory.events" if is_v2 else "memory.oom_control"))
        found["oom_kills"] = events.get("oom_kill", 0)
    return found


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {key: int(value) for key, value in lines}


async def kill_all() -> bool:
    """End all other processes of the Pod's pid namespace, of which this one is the first.

    Returns:
        whether none is left.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _KILL_S
    while _others():
        if os.getpid() != 1 or loop.time() > deadline:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        await asyncio.sleep(0.01)
    return True


def _others() -> bool:
    return any(name.isdecimal() and name != "1" for name in os.listdir("/proc"))  # noqa: PTH208
