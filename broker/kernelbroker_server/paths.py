"""The directories of a broker, from its settings."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path

from .config import ConfigError, Settings

CHECKOUT = Path(__file__).parents[2]
"""Where the Makefile is, if the broker is installed from a checkout."""
MARK = ".kernelbroker"
"""In a directory of data: it is a broker's."""
_OURS = frozenset({MARK, ".state", ".store-id", ".workspaces"})
"""The last ones are in the directories of earlier versions."""


def data_dir(settings: Settings, backend: str) -> Path:
    """Return the directory of a backend; creates it if it is the default one. Raises ConfigError."""
    if backend == "local":
        return settings.local.data_dir or _own_directory(Path("/var/tmp"), "local.data_dir")
    kind, _, runtime = backend.partition("-")
    own = (settings.docker if kind == "docker" else settings.kubernetes).data_dir
    own = own or _own_directory(Path("/var/tmp"), f"{kind}.data_dir") / kind
    return own / backend if runtime else own


def check_data_dirs(settings: Settings) -> None:
    """Raises ConfigError if a directory of data that is set has files of others."""
    for key, directory in _data_dirs(settings):
        if names := foreign_files(directory, named_paths(settings)):
            raise ConfigError(
                f"{key}: {directory} has files that are not the broker's ({', '.join(names[:3])}), and the "
                "broker removes directories in its data_dir; set it to a new or an empty directory"
            )


def mark_data_dirs(settings: Settings) -> None:
    """Make the directories of data that are set, and mark them as a broker's. Raises ConfigError."""
    check_data_dirs(settings)
    for key, directory in _data_dirs(settings):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (directory / MARK).exists():
                (directory / MARK).write_text("kernelbroker keeps workspaces and sandboxes here.\n")
        except OSError as exc:
            raise ConfigError(
                f"{key}: the broker cannot write to {directory}: {exc.strerror}"
            ) from exc


def _data_dirs(settings: Settings) -> Iterator[tuple[str, Path]]:
    for kind in ("local", "docker", "kubernetes"):
        directory = getattr(settings, kind).data_dir
        if directory is not None:
            yield f"{kind}.data_dir", directory


def foreign_files(directory: Path, own: Container[Path] = ()) -> list[str]:
    """The names of what is in a directory that is not a broker's; empty if it is one, or free.

    Args:
        own: files that the settings name.
    """
    found = sorted(directory.absolute().iterdir()) if directory.is_dir() else []
    if any(each.name in _OURS for each in found):
        return []
    return [each.name for each in found if each.name != "lost+found" and each not in own]


def named_paths(settings: Settings) -> set[Path]:
    """Files and directories that the settings name, which may lie in a directory of data."""
    given = (
        *(settings.state_dir, settings.log_file, settings.audit_log),
        *(settings.local.run_dir, settings.docker.run_dir),
    )
    return {Path(each).absolute() for each in given if each}


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
