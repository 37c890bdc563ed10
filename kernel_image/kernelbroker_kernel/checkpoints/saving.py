"""Saves the session: an internal cell of the broker. See `contract`."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import environ
from pathlib import Path
from typing import Any

from .. import environment
from ..contract import CHECKPOINTS
from ..delivery import Body, Delivery, Sink
from ..errors import Refused, refusing
from ..hooks import CellHooks
from . import archive
from .values import Missing, Values

MAX_LISTED = 2_000
"""Variables that an answer lists. The checkpoint has all."""
_LIBRARIES = ("numpy", "pandas", "pyarrow", "polars", "sklearn")


class _Checkpoint(Body):
    """A checkpoint with the files, as it is sent."""

    def __init__(self, manifest: dict[str, Any], values: Values) -> None:
        self._manifest = manifest
        self._values = values

    def write(self, sink: Sink) -> None:
        archive.write(sink, self._manifest, self._values)


def save(
    names: Mapping[str, Any],
    hidden: Mapping[str, Any],
    options: Mapping[str, Any],
    answer: Callable[[dict[str, Any]], None],
    *,
    hooks: CellHooks | None = None,
) -> None:
    """Save the variables, and with a `ticket` the files as well; tell what was saved by `answer`.

    Of the environment variables that changed since the kernel's start, a checkpoint has the names. One with
    a `path`, which stays in the session's own workspace, has the values as well, except `configured` ones.

    Raises:
        Refused: nothing was saved.
        OSError: the broker does not fetch it.
    """
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        raise Refused(
            "conflict",
            "this sandbox has no cloudpickle, which checkpoints need; add it to the image",
        ) from None
    directory = _own_directory()
    with refusing("the workspace"), tempfile.TemporaryFile(dir=directory) as spool:
        values = Values(names, hidden, spool)
        spool.flush()
        if values.size > options["max_bytes"]:
            raise Refused(
                "too_large",
                f"the variables need {values.size:,} bytes, and {options['max_bytes']:,} are left: "
                f"delete some, the largest of which are {_largest(values)}",
            )
        values.missing += _processes(hooks)
        path = options.get("path")
        changed = _changed_environ({} if hooks is None else hooks.environ)
        manifest = _manifest(values, sorted(changed)[:MAX_LISTED], files=path is None)
        if path is not None:
            own = changed.keys() - set(options.get("configured", ()))
            manifest["env_values"] = {name: changed[name] for name in own}
        report = {"saved": _report(manifest)}
        if path is not None:
            _save_to(Path(environment.WORKSPACE) / path, manifest, values)
            answer(report)
        else:
            with Delivery(options["ticket"], _Checkpoint(manifest, values)) as delivery:
                answer(report)
                delivery.deliver()


def _own_directory() -> Path:
    directory = Path(environment.WORKSPACE) / CHECKPOINTS
    with refusing(CHECKPOINTS):
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _save_to(path: Path, manifest: dict[str, Any], values: Values) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            archive.write(file, manifest, values)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _changed_environ(before: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if before.get(name) != value}


def _manifest(values: Values, env: list[str], *, files: bool) -> dict[str, Any]:
    try:
        cwd = str(Path.cwd().relative_to(environment.WORKSPACE))
    except (OSError, ValueError):  # removed, or outside the workspace
        cwd = None
    return {
        "python": platform.python_version(),
        "libraries": {
            name: str(getattr(sys.modules[name], "__version__", ""))
            for name in _LIBRARIES
            if name in sys.modules
        },
        "cwd": cwd,
        "sys_path": [path for path in sys.path if _in_workspace(path)],
        "env": env,
        "files": files,
        "parts": values.parts,
        "missing": values.missing,
    }


def _in_workspace(path: object) -> bool:
    return type(path) is str and f"{path}/".startswith(f"{environment.WORKSPACE}/")


def _report(manifest: dict[str, Any]) -> dict[str, Any]:
    """What the broker tells the client: the variables with type and bytes, and what is missing."""
    saved = [
        {
            "name": name,
            "type": kind,
            "size": sum(part["sizes"]) if number == 0 else 0,
            "form": part["kind"],
        }
        for part in manifest["parts"]
        for number, (name, kind) in enumerate(zip(part["names"], part["types"], strict=True))
    ]
    return {
        "variables": saved[:MAX_LISTED],
        "dropped": max(0, len(saved) - MAX_LISTED),
        "missing": manifest["missing"][:MAX_LISTED],
        "env": manifest["env"],
        "python": manifest["python"],
    }


def _largest(values: Values) -> str:
    parts = sorted(values.parts, key=lambda part: -sum(part["sizes"]))[:3]
    return ", ".join(f"{part['names'][0]} ({sum(part['sizes']):,} bytes)" for part in parts)


def _processes(hooks: CellHooks | None) -> list[Missing]:
    """What runs beside the kernel, and is not saved."""
    found: list[Missing] = []
    if hooks is not None and hooks.node is not None:
        found.append({"name": "<javascript>", "reason": "variables of JavaScript are not saved"})
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None)
        if "__main__" in (getattr(target, "__module__", None), type(thread).__module__):
            reason = f"a thread of the session runs: {thread.name[:100]}"
            found.append({"name": "<thread>", "reason": reason})
    if children := _children():
        found.append({"name": "<process>", "reason": f"{children} processes of the session run"})
    return found


def _children() -> int:
    """The number of child processes that run."""
    with suppress(OSError):
        path = f"/proc/self/task/{os.getpid()}/children"
        pids = Path(path).read_text().split()
        return sum(not _is_zombie(pid) for pid in pids)
    return 0


def _is_zombie(pid: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
