"""What a sandbox looks like from inside, whichever backend launched it: paths, user, variables, command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelbroker_kernel.contract import GATEWAY_MODULE

from .base import Limits, SandboxSpec

HOME = Path("/home/sandbox")
TMP = Path("/tmp")
LIBRARY = Path("/opt/kernelbroker/lib")
ENVIRONMENT = Path("/opt/kernelbroker/env")
UID = 1000
_MAX_FILE_BYTES = 4 * 1024**3

GATEWAY_COMMAND = ("-P", "-m", GATEWAY_MODULE)
"""What Python is given to run; tests run something smaller. Without -P the gateway would look for its
modules in the workspace first."""


def max_file_bytes(limits: Limits) -> int:
    """No single file grows beyond this (RLIMIT_FSIZE)."""
    return min(_MAX_FILE_BYTES, limits.workspace_size)


def gateway_argv(
    python: str | Path, command: Sequence[str], listen: tuple[str, str], spec: SandboxSpec
) -> list[str]:
    """The gateway's command line. `listen` is one of its options with its value, `--fd 3` for one."""
    imports = [arg for module in spec.imports for arg in ("--import", module)]
    return [str(python), *command, *listen, *imports]


def environment(spec: SandboxSpec, *, home: Path, tmp: Path, workspace: Path) -> dict[str, str]:
    """Environment variables; nothing comes from the broker's own. How Python is found is not here."""
    threads = str(max(1, int(spec.limits.cpus)))
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
        **spec.env,
    }


def python_environment(python: Path, library: Path) -> dict[str, str]:
    """The variables by which our Python and our package are found; an image brings its own."""
    return {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(library),
    }
