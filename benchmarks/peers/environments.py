"""The peers: what each is, how it is installed, and its adapter. Makes their environments.

The packages that all kernels share are pinned as in the sandboxes (`kernel_image/requirements.txt`).
Everything is installed below one cache directory, with pip and npm, and used again in later runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KERNEL_PYTHON = ROOT / ".venv-kernel" / "bin" / "python"
DEFAULT_DIRECTORY = Path.home() / ".cache" / "kernelbroker-bench"
IMAGE = "kernelbroker-bench"
"""The sandboxes' image, opened up for other projects: made by `make_image`."""
BASE_IMAGE = os.environ.get("KERNELBROKER_TEST_IMAGE", "kernelbroker-kernel")
SANDBOX_RUNTIME = "@anthropic-ai/sandbox-runtime@0.0.83"
DOCKERFILE = f"""
FROM {BASE_IMAGE}
USER root
RUN rm -f /workspace && mkdir -p /workspace /sandbox && ln -s /opt/kernelbroker/env /sandbox/.sandbox-venv
WORKDIR /
ENTRYPOINT []
CMD ["python"]
"""

DATA = ("numpy", "pandas", "pyarrow", "matplotlib")
KERNEL = (*DATA, "ipykernel", "jupyter-client")


@dataclass(frozen=True)
class Peer:
    """One opponent.

    Attributes:
        adapter: module and class in this package.
        requirements: of its environment; None: `python` is one of this project's.
        shared: packages pinned as in the sandboxes.
        mode: how it is used, for the table.
        needs_image: the image `IMAGE`, from "docker" or imported into "kern".
        pool: it keeps warm sessions, so the cold start is measured in a worker of its own.
    """

    name: str
    adapter: str
    mode: str
    requirements: tuple[str, ...] | None = None
    shared: tuple[str, ...] = KERNEL
    python: Path = Path()
    needs_image: str = ""
    needs_npm: bool = False
    pool: bool = False

    @property
    def key(self) -> str:
        pins = "\n".join((*(self.requirements or ()), *pinned(self.shared)))
        return re.sub(r"\W+", "-", self.name) + "-" + hashlib.sha256(pins.encode()).hexdigest()[:8]


PEERS = (
    Peer(
        "kernelbroker",
        "use_kernelbroker:Used",
        "SDK, broker, pool of 3 warm bubblewrap jails; default settings",
        python=Path(sys.executable),
        pool=True,
    ),
    Peer(
        "jupyter_client",
        "use_jupyter:Used",
        "raw, over ZMQ to a stock ipykernel; no isolation",
        python=KERNEL_PYTHON,
    ),
    Peer(
        "kernel gateway",
        "use_gateways:Used",
        "stock Jupyter Kernel Gateway over TCP; no isolation",
        python=KERNEL_PYTHON,
    ),
    Peer(
        "enterprise gateway",
        "use_gateways:Enterprise",
        "kernels as local processes; no isolation",
        ("jupyter-enterprise-gateway==3.3.0", "ipykernel==6.29.5"),  # it brings no kernel
        shared=(*DATA,),
    ),
    Peer(
        "ipybox",
        "use_ipybox:Used",
        "`CodeExecutor`; no isolation",
        ("ipybox==0.9.2", "mcp==1.30.0"),  # it does not import with mcp 2
    ),
    Peer(
        "ipybox, sandboxed",
        "use_ipybox:Sandboxed",
        f"`CodeExecutor(sandbox=True)` with {SANDBOX_RUNTIME}",
        ("ipybox==0.9.2", "mcp==1.30.0"),
        needs_npm=True,
    ),
    Peer(
        "codeboxapi",
        "use_codebox:Used",
        "local: IPython in the client's process; no isolation. Its Docker mode pulls an image",
        ("codeboxapi[local]==0.2.6",),
    ),
    Peer(
        "llm-sandbox, bubblewrap",
        "use_llm_sandbox:Bubblewrap",
        "`SandboxSession`: a new interpreter for each cell, without pandas",
        ("llm-sandbox==0.3.46",),
        shared=(),
    ),
    Peer(
        "llm-sandbox, container",
        "use_llm_sandbox:Container",
        "`InteractiveSandboxSession` on Docker, with an image that needs no set-up",
        ("llm-sandbox[docker]==0.3.46",),
        shared=(),
        needs_image="docker",
    ),
    Peer(
        "kern-sandbox",
        "use_kern_sandbox:Used",
        "`Sandbox().kernel()`: a warm plain interpreter in a container",
        ("kern-sandbox==0.2.49",),
        shared=(),
        needs_image="kern",
    ),
    Peer(
        "autogen",
        "use_notebook_clients:Autogen",
        "`JupyterCodeExecutor`; no isolation",
        ("autogen-ext[jupyter-executor]==0.7.5", "nbclient==0.11.0"),
    ),
    Peer(
        "nbclient",
        "use_notebook_clients:Nbclient",
        "`async_execute_cell` on one kernel; no isolation",
        ("nbclient==0.11.0",),
    ),
)


class UnavailableError(Exception):
    """A peer cannot be installed or started here; the message says why."""


def pinned(names: tuple[str, ...]) -> list[str]:
    """Return requirements with the sandboxes' versions of these packages."""
    text = (ROOT / "kernel_image" / "requirements.txt").read_text()
    found = dict(re.findall(r"^([\w-]+)==(\S+)(?: ;.*)?", text, re.MULTILINE)[::-1])
    return [f"{name}=={found[name]}" for name in names]


def python_of(peer: Peer, directory: Path) -> Path:
    """Return the Python of a peer's environment, which is made if necessary."""
    if peer.requirements is None:
        return peer.python
    place = directory / peer.key
    python = place / "bin" / "python"
    if not (place / ".made").exists():
        _run(sys.executable, "-m", "venv", "--clear", str(place))
        argv = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*argv, *peer.requirements, *pinned(peer.shared))
        (place / ".made").touch()
    if peer.needs_npm:
        npm = directory / "npm"
        if not (npm / "node_modules" / ".bin" / "srt").exists():
            npm.mkdir(parents=True, exist_ok=True)
            _run("npm", "install", "--silent", "--no-audit", "--prefix", str(npm), SANDBOX_RUNTIME)
    if peer.needs_image:
        make_image(python.with_name("kern") if peer.needs_image == "kern" else None, directory)
    return python


def make_image(kern: Path | None, directory: Path) -> None:
    """Make the peers' image in the engine and, if `kern` is given, import it there."""
    if kern is not None and f"{IMAGE}:latest" in _run(str(kern), "images"):
        return
    _run("docker", "build", "--quiet", "--tag", IMAGE, "-", text=DOCKERFILE)
    if kern is not None:
        archive = directory / "image.tar"
        _run("docker", "save", "--output", str(archive), IMAGE)
        _run(str(kern), "load", "--input", str(archive))
        archive.unlink()


def versions(python: Path) -> list[str]:
    """Return what is installed in an environment, as requirements."""
    argv = (str(python), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    return _run(*argv).split()


def _run(*argv: str, text: str | None = None) -> str:
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as exc:
        raise UnavailableError(f"`{argv[0]}` is not installed") from exc
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        command = " ".join(argv[:3])
        raise UnavailableError(f"`{command} ...` exited with {done.returncode}: {lines[-1][:200]}")
    return done.stdout


def remove_containers() -> None:
    """Remove the containers of the peers' image, which only the benchmark uses."""
    for name in _run("docker", "ps", "--all", "--quiet", "--filter", f"ancestor={IMAGE}").split():
        _run("docker", "rm", "--force", name)
