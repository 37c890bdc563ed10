"""The working directory and the environment variables of a session, and of one execution.

Values come from the request and may be any JSON. Nothing here depends on IPython.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from os import chdir, environ
from os.path import normpath
from pathlib import Path
from typing import Any

from . import contract, machine

WORKSPACE = environ.get("KERNELBROKER_WORKSPACE", contract.WORKSPACE)
"""Sandboxes without a jail have the workspace at another path."""

at_start: Mapping[str, str] = environ
"""The environment variables at the kernel's start, which a cell cannot change. Set by the hooks."""


def configure(settings: Any) -> None:
    """Set what belongs to the session: ``{"env": {name: text}, "cwd": path | null,
    "layout": {"directories": [path], "files": {path: text}} | null,
    "limits": {"cpus": number | null, "memory": bytes | null}}``.

    Directories of the workspace are created if they do not exist, and so are the files of the layout.

    Raises:
        ValueError: the settings or an environment variable are invalid.
        OSError: the working directory cannot be created or entered.
    """
    if not isinstance(settings, dict):
        raise ValueError("'configure' must be an object")
    env, cwd, layout = settings.get("env"), settings.get("cwd"), settings.get("layout")
    if env is not None and not isinstance(env, dict):
        raise ValueError("'env' must be an object of names and texts")
    if cwd is not None and not isinstance(cwd, str):
        raise ValueError("'cwd' must be a path or null")
    limits = settings.get("limits") or {}
    machine.change(limits.get("cpus"), limits.get("memory"))
    if layout is not None:
        _make_layout(layout["directories"], layout["files"])
    for name, value in (env or {}).items():
        _set_variable(name, value)
    if cwd is not None:
        path = _workspace_path(cwd)
        if path.startswith(f"{WORKSPACE}/"):
            Path(path).mkdir(parents=True, exist_ok=True)
        _enter(path)


def _make_layout(directories: list[str], files: dict[str, str]) -> None:
    for path in directories:
        Path(WORKSPACE, path).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with suppress(FileExistsError), Path(WORKSPACE, path).open("x") as file:
            file.write(text)


class Override:
    """The working directory and variables of one execution.

    `undo` restores what `apply` replaced, and nothing else: changes that the cell itself makes stay, as in
    a notebook.
    """

    def __init__(self, cwd: Any, env: Any) -> None:
        """Values of `cwd` and `env` that have the wrong type are ignored."""
        self._cwd = cwd if isinstance(cwd, str) else None
        self._env = env if isinstance(env, dict) else {}
        self._former_cwd: str | None = None
        self._former_env: dict[str, str | None] = {}

    def apply(self) -> None:
        """Raises ValueError or OSError; call `undo` then as well."""
        for name, value in self._env.items():
            if isinstance(name, str) and isinstance(value, str):
                former = environ.get(name)
                _set_variable(name, value)
                self._former_env[name] = former
        if self._cwd is not None:
            former_cwd = _current_directory()
            _enter(_workspace_path(self._cwd))
            self._former_cwd = former_cwd

    def undo(self) -> None:
        for name, value in self._former_env.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
        if self._former_cwd is not None:
            try:
                chdir(self._former_cwd)
            except OSError:  # the cell removed it
                chdir("/")
        self._former_env, self._former_cwd = {}, None


def _set_variable(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise ValueError(f"environment variable {name!r}: name and value must be text")
    if not name or "=" in name or "\0" in name or "\0" in value:
        raise ValueError(f"environment variable {name!r}: no empty name, no '=' in it, no NUL")
    try:
        environ[name] = value
    except UnicodeError as error:
        raise ValueError(f"environment variable {name!r}: not valid Unicode") from error


def _workspace_path(cwd: str) -> str:
    if "\0" in cwd:
        raise ValueError(f"working directory {cwd!r}: no NUL")
    return normpath(Path(WORKSPACE) / cwd)


def _enter(path: str) -> None:
    try:
        chdir(path)
    except OSError as error:
        raise type(error)(f"working directory {path!r}: {error.strerror}") from error
    except UnicodeError as error:
        raise ValueError(f"working directory {path!r}: not valid Unicode") from error


def _current_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return WORKSPACE
