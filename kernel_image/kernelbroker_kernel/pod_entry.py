"""The first process of a sandbox that is a Pod: it starts the gateway, and serves the broker beside it.

A Pod has no other way to do what an engine does for a container: it sets the limits of processes, reaps
orphans, reports the gateway's exit status with its last output, measures memory and processor time, and
moves the workspace's files in and out. The workspace is a volume of the Pod, so its files outlive the
kernel, and this process, too: if memory runs out, a runtime may end all processes of the container. The
kubelet then starts the container again, which serves the files and starts no gateway.

User code runs as the same user. It cannot signal this process, which is the first one of the Pod's pid
namespace. What it can read here, it may know: the token and the key are those of its own sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

from .contract import CERTIFICATE_FILE, HANDOVER, KEY_FILE, TOKEN_FILE
from .pod_front import Front, handover_path

_STARTED = Path("/dev/shm/.kernelbroker-started")
"""In a volume of the Pod, so that a container that was started again finds it."""
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


async def serve(options: argparse.Namespace) -> None:
    """Start the gateway, then serve until the broker or the kubelet ends the Pod."""
    loop = asyncio.get_running_loop()
    child = Child()
    loop.add_signal_handler(signal.SIGCHLD, child.reap)
    loop.add_signal_handler(signal.SIGTERM, os._exit, 0)
    handover = handover_path()
    front = Front((options.secret / TOKEN_FILE).read_text(), child.ended, handover)
    if os.path.exists(_STARTED):  # noqa: PTH110, ASYNC240
        child.restarted = True
        child.ended.set_result(137)
    else:
        limits = [
            (resource.RLIMIT_NOFILE, options.open_files),
            (resource.RLIMIT_FSIZE, options.file_size),
            (resource.RLIMIT_CORE, 1),
        ]
        argv = [str(handover) if each == HANDOVER else each for each in options.command]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("KUBERNETES_")}
        child.start(argv, environ, limits)
        with contextlib.suppress(OSError):
            _STARTED.touch()  # noqa: ASYNC240
    # Only now, since the gateway starts meanwhile.
    from . import pod_server

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.secret / CERTIFICATE_FILE, options.secret / KEY_FILE)
    await front.serve(options.port, context, pod_server.make(child))
    while front.connections or loop.time() - front.used_at < options.alone:  # noqa: ASYNC110
        await asyncio.sleep(options.alone / 10)
    await kill_all()


def main() -> int:
    """Serve until the Pod ends."""
    parser = argparse.ArgumentParser(prog="kernelbroker_kernel.pod_entry")
    parser.add_argument("--port", type=int, required=True, help="for the broker, over TLS")
    parser.add_argument(
        "--secret", type=Path, required=True, help="a directory with certificate, key and token"
    )
    parser.add_argument("--open-files", type=int, required=True)
    parser.add_argument("--file-size", type=int, required=True)
    parser.add_argument(
        "--alone",
        type=float,
        required=True,
        help="end when no broker was connected for so many seconds",
    )
    parser.add_argument("command", nargs="+", help="that of the gateway")
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
