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

from tests.support.requires import IMAGE, KERNEL_PYTHON, gvisor_runtime

from .probes import DEADLINE_S, PROBE, running_backend, running_docker, running_kubernetes


def running(kind: str, **options: Any) -> AbstractAsyncContextManager[Backend]:
    """A started backend in temporary directories. Checks that nothing is left after it stops."""
    if kind.startswith("local"):
        options.pop("run_cell", None)  # it tries nothing at startup
        return running_backend(fork_server=kind == "local-fork", **options)
    if kind == "kubernetes":
        return running_kubernetes(**options)
    return running_docker(**docker_options(kind), **options)


def docker_options(kind: str) -> dict[str, Any]:
    """The options of a docker backend of this kind."""
    transport = Transport.TCP if kind == "docker-tcp" else Transport.UNIX
    return {"transport": transport, "runtime": gvisor_runtime() if kind == "gvisor" else "runc"}


GATEWAY = "import runpy; runpy.run_module('kernelbroker_kernel', run_name='__main__')"
"""The command of the real gateway."""
ROOT = Path(__file__).parents[2]
BROKER = """
import asyncio, sys
from pathlib import Path
from kernelbroker_server.backends.base import Network, SandboxSpec
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.docker_transport import Transport
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.pool.warm_sandbox import launch
from tests.backends.probes import KUBECONFIG, POD_SETTINGS, run_cell

async def main():
    kind, runtime, python, image, command, data, run, network, grace = sys.argv[1:]
    common = {"data_dir": Path(data), "run_dir": Path(run), "command": ("-c", command)}
    spec = SandboxSpec(network=Network(network), orphan_grace=float(grace))
    if spec.orphan_grace:
        common["id_file"] = Path(data).with_name("broker-id")
    if kind == "kubernetes":
        from kernelbroker_server.backends.kubernetes import KubernetesBackend
        del common["run_dir"]
        if "kernelbroker_kernel" not in command:
            common["run_cell"] = run_cell
        common["require_policies"] = False
        backend = KubernetesBackend(settings=POD_SETTINGS, kubeconfig=KUBECONFIG, **common)
    elif not kind.startswith("local"):
        transport = Transport.TCP if kind == "docker-tcp" else Transport.UNIX
        if "kernelbroker_kernel" not in command:
            common["run_cell"] = run_cell
        backend = DockerBackend(image=image, transport=transport, runtime=runtime, **common)
    else:
        forks = kind == "local-fork"
        backend = LocalBackend(kernel_python=Path(python), fork_server=forks, **common)
    await backend.start()
    if spec.orphan_grace:
        warm = await launch(backend, "one", spec, 60)
        warm.sandbox.remember(session="a session", is_ready=True)
        await launch(backend, "two", spec, 60)
    else:
        await backend.launch("one", spec)
    print("launched", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def other_broker(
    kind: str,
    data: Path,
    run: Path,
    command: str = PROBE[1],
    network: str = "none",
    grace: float = 0,
    image: str = IMAGE,
) -> Any:
    """A broker of this kind with a sandbox `one`, in another process that can be killed.

    Args:
        grace: seconds that its sandboxes live without it. If not 0, the command must be GATEWAY. Then `one`
            belongs to `a session`, `two` is warm, and `broker-id` beside `data` has the broker's id.
    """
    has_runtime = kind in ("docker", "docker-tcp", "gvisor")
    runtime = docker_options(kind)["runtime"] if has_runtime else ""
    arguments = [
        kind,
        runtime,
        str(KERNEL_PYTHON),
        image,
        command,
        str(data),
        str(run),
        network,
        str(grace),
    ]
    broker = await asyncio.create_subprocess_exec(
        sys.executable, *("-c", BROKER, *arguments), stdout=subprocess.PIPE, cwd=ROOT
    )
    async with asyncio.timeout(3 * DEADLINE_S):  # it tries its launches first
        assert await broker.stdout.readline() == b"launched\n"
    return broker


async def dead_broker(kind: str, data: Path, run: Path, **options: Any) -> None:
    """Start a broker and kill it, so that its files and sandboxes are left behind."""
    broker = await other_broker(kind, data, run, **options)
    broker.kill()
    await broker.wait()
