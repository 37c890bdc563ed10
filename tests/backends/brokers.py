"""Backends of each kind: in the test's own process, and in another one that can be killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from kernelbroker_server.backends.base import Backend
from kernelbroker_server.backends.docker_ways import Transport

from .probes import DEADLINE_S, IMAGE, KERNEL_PYTHON, PROBE, running_backend, running_docker


def running(kind: str, **options: Any) -> AbstractAsyncContextManager[Backend]:
    """A started backend in directories of its own; when it stops, nothing may be left of it."""
    if kind == "local":
        return running_backend(**options)
    transport = Transport.TCP if kind == "docker-tcp" else Transport.UNIX
    return running_docker(transport=transport, **options)


BROKER = """
import asyncio, sys
from pathlib import Path
from kernelbroker_server.backends.base import Network, SandboxSpec
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.docker_ways import Transport
from kernelbroker_server.backends.local import LocalBackend

async def main():
    kind, python, image, command, data, run, network = sys.argv[1:]
    common = {"data_dir": Path(data), "run_dir": Path(run), "command": ("-c", command)}
    if kind != "local":
        transport = Transport.TCP if kind == "docker-tcp" else Transport.UNIX
        backend = DockerBackend(image=image, transport=transport, **common)
    else:
        backend = LocalBackend(kernel_python=Path(python), **common)
    await backend.start()
    await backend.launch("one", SandboxSpec(network=Network(network)))
    print("launched", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def other_broker(
    kind: str, data: Path, run: Path, command: str = PROBE[1], network: str = "none"
) -> Any:
    """A broker of this kind with a sandbox "one", in a process of its own that can be killed."""
    arguments = [kind, str(KERNEL_PYTHON), IMAGE, command, str(data), str(run), network]
    broker = await asyncio.create_subprocess_exec(
        sys.executable, *("-c", BROKER, *arguments), stdout=subprocess.PIPE
    )
    async with asyncio.timeout(DEADLINE_S):
        assert await broker.stdout.readline() == b"launched\n"
    return broker


async def dead_broker(kind: str, data: Path, run: Path, network: str = "none") -> None:
    """Start one and kill it: what it leaves is there, and nobody's."""
    broker = await other_broker(kind, data, run, network=network)
    broker.kill()
    await broker.wait()
