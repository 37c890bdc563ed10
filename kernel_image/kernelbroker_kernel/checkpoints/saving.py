"""Saves the session: an internal cell of the broker. See `contract`."""

from __future__ import annotations

import itertools
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import environ
from pathlib import Path
from typing import Any

from .. import environment
from ..delivery import Body, Delivery
from ..errors import Refused, refusing
from ..hooks import CellHooks
from ..safe_repr import safe_text
from . import archive
from .values import Missing, Values

MAX_LISTED = 2_000
"""Variables that an answer lists. The checkpoint has all."""
_PATH_CHARS = 1_000
_LIBRARIES = ("numpy", "pandas", "pyarrow", "polars", "sklearn")


class Checkpoint(Body):
    """A checkpoint that is ready to be written. `report` is what the broker tells the client."""

    def __init__(self, manifest: dict[str, Any], values: Values) -> None:
        self.report = _report(manifest)
        self._manifest = manifest
        self._values = values

    def write(self, sink: Any) -> None:
        archive.write(sink, self._manifest, self._values)


def save(
    names: Mapping[str, Any],
    hidden: Mapping[str, Any],
    options: Mapping[str, Any],
    answer: Callable[[dict[str, Any]], None],
    *,
    hooks: CellHooks | None = None,
) -> None:
    """Prepare a checkpoint, tell by `answer` what is in it, and send it.

    Raises:
        Refused: nothing was saved.
        OSError: the broker does not fetch it.
    """
    with (
        prepared(names, hidden, options, hooks) as checkpoint,
        Delivery(options["ticket"], checkpoint) as delivery,
    ):
        answer({"saved": checkpoint.report})
        delivery.deliver()


@contextmanager
def prepared(
    names: Mapping[str, Any],
    hidden: Mapping[str, Any],
    options: Mapping[str, Any],
    hooks: CellHooks | None = None,
) -> Iterator[Checkpoint]:
    """Prepare a checkpoint. While the block runs it can be written.

    Of the environment variables that changed since the kernel's start, a checkpoint with files has the
    names. One without files, for the same session, has the values as well, but for `configured` ones.

    Raises:
        Refused
    """
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        raise Refused(
            "conflict",
            "this sandbox has no cloudpickle, which checkpoints need; add it to the image",
        ) from None
    with refusing("the workspace"), tempfile.TemporaryFile(dir=environment.WORKSPACE) as spool:
        values = Values(names, hidden, spool)
        spool.flush()
        if values.size > options["max_bytes"]:
            raise Refused(
                "too_large",
                f"the variables need {values.size:,} bytes, and {options['max_bytes']:,} are allowed: "
                f"delete some, the largest of which are {_largest(values)}",
            )
        values.missing += _processes(hooks)
        changed = _changed_environ({} if hooks is None else hooks.environ)
        files = bool(options.get("files"))
        if files:
            values.missing += [
                {"name": f"file {safe_text(path, _PATH_CHARS)}", "reason": reason}
                for path, reason in itertools.islice(archive.unreadable(), MAX_LISTED)
            ]
        manifest = _manifest(values, sorted(changed)[:MAX_LISTED], files=files)
        if not files:
            own = changed.keys() - set(options.get("configured", ()))
            manifest["env_values"] = {name: changed[name] for name in own}
        yield Checkpoint(manifest, values)


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
