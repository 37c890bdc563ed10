"""Backends of each kind, in the process of the test or in another process that can be killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from kernelbroker_server.backends.base import Backend
from kernelbroker_server.backends.docker_transport import Transport

from .probes import DEADLINE_S, GVISOR, IMAGE, KERNEL_PYTHON, PROBE, running_backend, running_docker


def running(kind: str, **options: Any) -> AbstractAsyncContextManager[Backend]:
    """A started backend in temporary directories. Checks that nothing is left after it stops."""
    if kind.startswith("local"):
        options.pop("run_cell", None)  # it tries nothing at startup
        return running_backend(fork_server=kind == "local-fork", **options)
    return running_docker(**docker_options(kind), **options)


def docker_options(kind: str) -> dict[str, Any]:
    """The options of a docker backend of this kind."""
    transport = Transport.TCP if kind == "docker-tcp" else Transport.UNIX
    return {"transport": transport, "runtime": GVISOR if kind == "gvisor" else "runc"}


ROOT = Path(__file__).parents[2]
BROKER = """
import asyncio, sys
from pathlib import Path
from kernelbroker_server.backends.base import Network, SandboxSpec
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.docker_transport import Transport
from kernelbroker_server.backends.local import LocalBackend
from tests.backends.probes import run_cell

async def main():
    kind, runtime, python, image, command, data, run, network = sys.argv[1:]
    common = {"data_dir": Path(data), "run_dir": Path(run), "command": ("-c", command)}
    if not kind.startswith("local"):
        transport = Transport.TCP if kind == "docker-tcp" else Transport.UNIX
        if "kernelbroker_kernel" not in command:
            common["run_cell"] = run_cell
        backend = DockerBackend(image=image, transport=transport, runtime=runtime, **common)
    else:
        forks = kind == "local-fork"
        backend = LocalBackend(kernel_python=Path(python), fork_server=forks, **common)
    await backend.start()
    await backend.launch("one", SandboxSpec(network=Network(network)))
    print("launched", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def other_broker(
    kind: str, data: Path, run: Path, command: str = PROBE[1], network: str = "none"
) -> Any:
    """A broker of this kind with a sandbox `one`, in another process that can be killed."""
    runtime = "" if kind.startswith("local") else docker_options(kind)["runtime"]
    arguments = [kind, runtime, str(KERNEL_PYTHON), IMAGE, command, str(data), str(run), network]
    broker = await asyncio.create_subprocess_exec(
        sys.executable, *("-c", BROKER, *arguments), stdout=subprocess.PIPE, cwd=ROOT
    )
    async with asyncio.timeout(DEADLINE_S):
        assert await broker.stdout.readline() == b"launched\n"
    return broker


async def dead_broker(kind: str, data: Path, run: Path, network: str = "none") -> None:
    """Start a broker and kill it, so that its files and sandboxes are left behind."""
    broker = await other_broker(kind, data, run, network=network)
    broker.kill()
    await broker.wait()
