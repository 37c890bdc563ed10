"""The directories of a broker, from its settings."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from .config import ConfigError, Settings


def data_dir(settings: Settings, backend: str) -> Path:
    """Return the directory of a backend; creates it if it is the default one. Raises ConfigError."""
    if backend == "local":
        return settings.local.data_dir or _own_directory(Path("/var/tmp"), "local.data_dir")
    kind, _, runtime = backend.partition("-")
    own = (settings.docker if kind == "docker" else settings.kubernetes).data_dir
    own = own or _own_directory(Path("/var/tmp"), f"{kind}.data_dir") / kind
    return own / backend if runtime else own


def run_dir(settings: Settings, backend: str) -> Path:
    """Return the directory of a backend's sockets; creates the default one. Raises ConfigError."""
    parent = Path(tempfile.gettempdir())
    if backend == "local":
        return settings.local.run_dir or _own_directory(parent, "local.run_dir")
    return settings.docker.run_dir or _own_directory(parent, "docker.run_dir") / "docker"


def _own_directory(parent: Path, key: str) -> Path:
    """Create a directory of this user, below one that all users can write to. Nobody else has access."""
    path = parent / f"kernelbroker-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError(f"{path} is not a directory of this user; set {key} to another one")
    path.chmod(0o700)
    return path
