"""Loads a checkpoint: an internal cell of the broker. See `contract`.

What can be loaded is loaded; the rest is listed by name, with the reason.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from os import chdir, environ
from pathlib import Path
from typing import IO, Any

from .. import environment
from ..errors import Refused, refusing
from . import archive, values
from .saving import MAX_LISTED
from .values import Missing, Part


def load(names: MutableMapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Load the checkpoint at `path`, and remove it. Raises Refused.

    Returns what is missing, also because it was not saved.
    """
    path = Path(environment.WORKSPACE) / options["path"]
    missing: list[Missing] = []
    with refusing(options["path"]), path.open("rb") as file:
        try:
            manifest = archive.read_manifest(file)
            begin = file.tell()
            parts: list[Part] = manifest["parts"]
            if manifest["files"]:
                file.seek(begin + archive.parts_size([part["sizes"] for part in parts]))
                for name, reason in archive.extract(file):
                    missing.append({"name": f"file {name}"[:500], "reason": reason})
            missing += manifest["missing"]
            sys.path[:0] = [path for path in manifest["sys_path"] if path not in sys.path]
            environ.update(manifest.get("env_values", {}))
            _enter(manifest.get("cwd"), options)
            file.seek(begin)
            missing += _load_parts(file, manifest, names)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(
                "conflict", f"the checkpoint is damaged: {type(error).__name__}"
            ) from None
        finally:
            with suppress(OSError):
                path.unlink()
                path.parent.rmdir()
    env = [name for name in manifest.get("env", ()) if name not in environ]
    return {"missing": missing[:MAX_LISTED], "env_missing": env}


def _load_parts(
    file: IO[bytes], manifest: dict[str, Any], names: MutableMapping[str, Any]
) -> list[Missing]:
    missing: list[Missing] = []
    same = str(manifest["python"]).split(".")[:2] == platform.python_version().split(".")[:2]
    position = file.tell()
    for part in manifest["parts"]:
        file.seek(position)
        position += archive.parts_size([part["sizes"]])
        try:
            data = archive.read_part(file, part["sizes"])
        except (ValueError, OSError, MemoryError) as error:
            reason = str(error) or "there is not enough memory"
            missing += [{"name": name, "reason": reason} for name in part["names"]]
            continue
        for lost in values.load(part, data, names, same_python=same):
            lost["reason"] += _versions(manifest)
            missing.append(lost)
    return missing


def _versions(manifest: dict[str, Any]) -> str:
    """The versions that differ from those of the checkpoint; empty if none does."""
    theirs = {"Python": manifest["python"], **manifest["libraries"]}
    ours = {"Python": platform.python_version()} | {
        name: str(getattr(sys.modules.get(name), "__version__", "none"))
        for name in manifest["libraries"]
    }
    differences = [
        f"{name} {theirs[name]} (here {ours[name]})"
        for name in theirs
        if theirs[name] != ours[name]
    ]
    return f"; saved with {', '.join(differences)}" if differences else ""


def _enter(cwd: object, options: dict[str, Any]) -> None:
    """Enter the directory of the checkpoint, unless the session was given another one."""
    if isinstance(cwd, str) and not options.get("has_cwd"):
        with suppress(OSError):
            chdir(f"{environment.WORKSPACE}/{cwd}")
