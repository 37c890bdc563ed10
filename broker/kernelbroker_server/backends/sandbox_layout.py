"""The inside of a sandbox of any backend: paths, user, environment variables, the gateway's command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelbroker_kernel.contract import (
    CPUS_VARIABLE,
    GATEWAY_MODULE,
    MEMORY_VARIABLE,
    PROJECT,
    PROXY_PORT,
)

from .base import Limits, Network, SandboxSpec

HOME = Path("/home/sandbox")
TMP = Path("/tmp")
LIBRARY = Path("/opt/kernelbroker/lib")
WHEELS = Path("/opt/wheels")
ENVIRONMENT = Path("/opt/kernelbroker/env")
EGRESS_SOCKET = Path("/run/kernelbroker.egress")
"""The socket of the broker's proxy, in a sandbox with an allow list. Code inside cannot replace it."""
UID = 1000
_MAX_FILE_BYTES = 4 * 1024**3

GATEWAY_COMMAND = ("-P", "-m", GATEWAY_MODULE)
"""The arguments of Python; tests use a smaller program. Without -P Python would search the workspace for
modules first."""

_PROXY_URL = f"http://127.0.0.1:{PROXY_PORT}"
_PROXY = {
    # In lower and upper case: for http curl reads only the first, some programs only the second.
    **dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), _PROXY_URL),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
}


_WITHOUT_NETWORK = "/no-network-in-this-sandbox/and-no-packages.wheels-at-its-broker"
"""Where pip looks for packages if there are none: it says where it looked. It splits at spaces."""


def max_file_bytes(limits: Limits) -> int:
    """The size limit of a single file (RLIMIT_FSIZE)."""
    own = limits.workspace_size if limits.file_size is None else limits.file_size
    return min(_MAX_FILE_BYTES, limits.workspace_size, own)


def make_mount_points(workspace: Path, spec: SandboxSpec) -> None:
    """Make the directories of a workspace on which something is mounted. Raises OSError."""
    if spec.shared_data is not None:
        (workspace / "shared").mkdir()
    if spec.project is not None:
        (workspace / PROJECT).mkdir()


def gateway_argv(
    python: str | Path, command: Sequence[str], listen: tuple[str, ...], spec: SandboxSpec
) -> list[str]:
    """Return the gateway's command line. `listen` has options with their values, such as `--fd 3`."""
    imports = [arg for module in spec.imports for arg in ("--import", module)]
    egress = ["--egress", str(EGRESS_SOCKET)] if spec.uses_proxy else []
    outlives = ["--outlives-broker"] if spec.orphan_grace else []
    return [str(python), *command, *listen, *imports, *egress, *outlives]


def environment(
    spec: SandboxSpec,
    *,
    home: Path,
    tmp: Path,
    workspace: Path,
    wheels: Path | None = WHEELS,
    library: Path = LIBRARY,
) -> dict[str, str]:
    """Return the environment variables of a sandbox; the broker's own are not passed on.

    An operator's PYTHONPATH follows `library`, where the gateway is. The variables that Python needs are in
    `python_environment`.
    """
    threads = str(max(1, int(spec.limits.cpus)))
    paths = filter(None, (str(library), spec.env.get("PYTHONPATH")))
    return {
        "HOME": str(home),
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": str(tmp),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": str(home / ".matplotlib"),
        # More threads than cores are no faster, and each counts towards the limit of processes.
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "KERNELBROKER_WORKSPACE": str(workspace),
        CPUS_VARIABLE: f"{spec.limits.cpus:g}",
        MEMORY_VARIABLE: str(spec.limits.memory),
        **({} if spec.wheels is None else {"KERNELBROKER_WHEELS": str(wheels)}),
        **_pip(spec, wheels),
        **(_PROXY if spec.uses_proxy and spec.network is not Network.OPEN else {}),
        **spec.env,
        **({"PYTHONPATH": ":".join(paths)} if "PYTHONPATH" in spec.env else {}),
    }


def _pip(spec: SandboxSpec, wheels: Path | None) -> dict[str, str]:
    """The variables by which pip in a cell uses what `session.install` uses, or fails at once.

    By `PIP_NO_INDEX` the kernel, too, knows that there is no network (`network_hint`).
    """
    found = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if spec.network is Network.NONE and not spec.upstreams:
        found |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": _WITHOUT_NETWORK}
    elif spec.index_url is not None:
        found["PIP_INDEX_URL"] = spec.index_url
    if spec.wheels is not None:
        found["PIP_FIND_LINKS"] = str(wheels)
    return found


def path_inside(python: Path) -> str:
    """The PATH of a sandbox, with our Python at this path."""
    return f"{python.parent}:/usr/local/bin:/usr/bin:/bin"


def python_environment(python: Path, library: Path) -> dict[str, str]:
    """Return the variables by which our Python finds our package; an image has its own."""
    return {
        "PATH": path_inside(python),
        "PYTHONPATH": str(library),
    }
