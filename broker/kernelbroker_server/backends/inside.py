"""What a sandbox looks like from inside, whichever backend launched it: paths, user, variables, command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelbroker_kernel.contract import GATEWAY_MODULE, PROXY_PORT

from .base import Limits, Network, SandboxSpec

HOME = Path("/home/sandbox")
TMP = Path("/tmp")
LIBRARY = Path("/opt/kernelbroker/lib")
WHEELS = Path("/opt/wheels")
ENVIRONMENT = Path("/opt/kernelbroker/env")
WAY_OUT = Path("/run/kernelbroker.egress")
"""Where the broker's proxy listens, in a sandbox that may use it; nobody inside can replace it."""
UID = 1000
_MAX_FILE_BYTES = 4 * 1024**3

GATEWAY_COMMAND = ("-P", "-m", GATEWAY_MODULE)
"""What Python is given to run; tests run something smaller. Without -P the gateway would look for its
modules in the workspace first."""

_PROXY_URL = f"http://127.0.0.1:{PROXY_PORT}"
_PROXY = {
    # In both spellings: curl reads only the small one for http, some programs only the large one.
    **dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), _PROXY_URL),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
}


def max_file_bytes(limits: Limits) -> int:
    """No single file grows beyond this (RLIMIT_FSIZE)."""
    return min(_MAX_FILE_BYTES, limits.workspace_size)


def gateway_argv(
    python: str | Path, command: Sequence[str], listen: tuple[str, str], spec: SandboxSpec
) -> list[str]:
    """The gateway's command line. `listen` is one of its options with its value, `--fd 3` for one."""
    imports = [arg for module in spec.imports for arg in ("--import", module)]
    egress = ["--egress", str(WAY_OUT)] if spec.network is Network.ALLOWLIST else []
    return [str(python), *command, *listen, *imports, *egress]


def environment(
    spec: SandboxSpec,
    *,
    home: Path,
    tmp: Path,
    workspace: Path,
    wheels: Path | None = WHEELS,
    library: Path = LIBRARY,
) -> dict[str, str]:
    """Environment variables; nothing comes from the broker's own. How Python is found is not here.

    But for a PYTHONPATH of the operator's: without our `library` before it no gateway would be found.
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
        # More threads than cores only take turns, and each costs one of the few processes allowed.
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "KERNELBROKER_WORKSPACE": str(workspace),
        **({} if spec.wheels is None else {"KERNELBROKER_WHEELS": str(wheels)}),
        **(_PROXY if spec.network is Network.ALLOWLIST else {}),
        **spec.env,
        **({"PYTHONPATH": ":".join(paths)} if "PYTHONPATH" in spec.env else {}),
    }


def python_environment(python: Path, library: Path) -> dict[str, str]:
    """The variables by which our Python and our package are found; an image brings its own."""
    return {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(library),
    }
