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

from .contract import CERTIFICATE_FILE, HANDOVER, KEY_FILE, TOKEN_FILE
from .pod_front import Front, handover_path
from .pod_processes import Child, kill_all

_STARTED = Path("/dev/shm/.kernelbroker-started")
"""In a volume of the Pod, so that a container that was started again finds it."""


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
