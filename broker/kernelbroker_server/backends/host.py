"""Describes the machine of the local backend: the Python of the kernels, programs, the layout of /usr.

`Host.discover` runs once at start; the result does not change.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelbroker_kernel.contract import CHROMIUM, GATEWAY_MODULE

from .base import BackendUnavailable
from .programs import Program, find_bubblewrap
from .sandbox_layout import path_inside

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_WHICH_PYTHON = """
import importlib.util, json, sys
print(json.dumps([sys.prefix, sys.base_prefix, importlib.util.find_spec("playwright") is not None]))
"""
_WHICH_TIMEOUT_S = 20.0
_INSIDE = ("node", "rg")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of the local backend.

    Attributes:
        python: the interpreter of the kernels, as configured.
        environment: the virtual environment of `python`; None if it is not in one.
        bases: the installation directories of the Python, without those in /usr.
        package: the directory of `kernelbroker_kernel`.
        system: /bin, /lib and so on: the path, and its target if it is a symbolic link.
        bubblewrap: the program that makes jails; None if there is none.
        setpriv, nsenter: the paths of the programs; None if they are missing.
        inside: the programs that operations and languages need, by name, as a sandbox finds them.
        root: whether the broker is root, and can run sandboxes as another host user.
        browser_problem: what is missing for a browser; None if nothing is.
    """

    python: Path
    environment: Path | None
    bases: tuple[Path, ...]
    package: Path
    system: tuple[tuple[str, str | None], ...]
    bubblewrap: Program | None
    setpriv: str | None
    root: bool
    nsenter: str | None = None
    browser_problem: str | None = None
    inside: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def bwrap(self) -> str | None:
        """The path of bubblewrap."""
        return None if self.bubblewrap is None else self.bubblewrap.path

    @classmethod
    def discover(cls, kernel_python: Path, bwrap: str) -> Host:
        """Inspect the machine. Blocks while Python starts. Raises BackendUnavailable."""
        python = kernel_python.absolute()
        try:
            answer = subprocess.run(
                [python, "-I", "-c", _WHICH_PYTHON],
                capture_output=True,
                check=True,
                timeout=_WHICH_TIMEOUT_S,
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise BackendUnavailable(
                f"The kernels' Python, {python}, does not run: {error}. Make an environment and "
                "install kernel_image/requirements.txt into it, or set kernel_python."
            ) from error
        *paths, has_playwright = json.loads(answer)
        prefix, base = map(Path, paths)
        spec = importlib.util.find_spec(GATEWAY_MODULE)  # does not import it
        if spec is None or not spec.submodule_search_locations:
            raise BackendUnavailable(f"The package {GATEWAY_MODULE} is not installed")
        return cls(
            python=python,
            environment=prefix if prefix != base else None,
            # Symbolic links may contain either path.
            bases=tuple(
                path for path in dict.fromkeys((base, base.resolve())) if _outside_usr(path)
            ),
            package=Path(next(iter(spec.submodule_search_locations))).resolve(),
            system=tuple(
                (str(path), str(path.readlink()) if path.is_symlink() else None)
                for path in map(Path, _SYSTEM)
                if path.exists()
            ),
            bubblewrap=find_bubblewrap(bwrap),
            setpriv=shutil.which("setpriv"),
            root=os.geteuid() == 0,
            nsenter=shutil.which("nsenter"),
            inside={each: shutil.which(each, path=path_inside(python)) for each in _INSIDE},
            browser_problem=_browser_problem(has_playwright=has_playwright),
        )


def _browser_problem(*, has_playwright: bool) -> str | None:
    if not any(map(shutil.which, CHROMIUM)):
        return "this machine has no Chromium: install it, such as by apt-get install chromium"
    if not has_playwright:
        return (
            "the kernels' environment has no playwright: install kernel_image/browser.txt into it"
        )
    return None


def _outside_usr(path: Path) -> bool:
    return not path.is_relative_to("/usr")
