"""Where the project lies, and which paths lead into it."""

from __future__ import annotations

import os
from pathlib import Path

from .. import environment, workspace
from ..contract import PROJECT as PROJECT
from ..errors import Refused

SHOWN_ROOT = "/workspace/project"
_FORBIDDEN = ("/etc", "/sys", "/proc", "/dev", "/root")


def root() -> Path:
    """The project's directory. Raises Refused if there is none."""
    path = Path(environment.WORKSPACE, PROJECT)
    if path.is_symlink() or not path.is_dir():
        raise Refused("not_found", "the session has no project: upload one first")
    return path


def names(path: str) -> list[str]:
    """The components of a path in the project, from the workspace's root. Raises Refused.

    A path is relative to the project, or absolute and below it. Links are not looked at here: what
    opens the path follows none.
    """
    shown = path[:200]
    if path.startswith("~"):
        raise Refused("security", f"{shown}: home directories are not part of the project")
    if "\0" in path:
        raise Refused("bad_request", "a path has no NUL in it")
    parts = path.split("/")
    if ".." in parts:
        raise Refused(
            "security", f"{shown}: a path has no '..' in it; name it from the project's root"
        )
    if path.startswith("/"):
        for base in (SHOWN_ROOT, f"{environment.WORKSPACE}/{PROJECT}"):
            if path == base or path.startswith(f"{base}/"):
                parts = path.removeprefix(base).split("/")
                break
        else:
            what = next((each for each in _FORBIDDEN if Path(path).is_relative_to(each)), None)
            reason = f"{what} belongs to the system" if what else "it is outside of the project"
            raise Refused("security", f"{shown}: {reason}; name a path below {SHOWN_ROOT}")
    return [PROJECT, *workspace.components("/".join(filter(None, parts)))]


def inside(path: str) -> Path:
    """The path of an existing entry, for programs. No component is a link. Raises Refused."""
    found = Path(environment.WORKSPACE)
    for name in names(path):
        found /= name
        if found.is_symlink():
            raise Refused(
                "security", f"{path[:200]}: it leads over a link, and links are not followed"
            )
    if not found.exists():
        raise Refused("not_found", f"{path[:200]}: there is no such file or directory")
    return found


def writable(path: str) -> list[str]:
    """As `names`, for a file that is changed. Raises Refused for git's own files."""
    found = names(path)
    if any(name.lower() == ".git" for name in found):
        raise Refused(
            "security", f"{path[:200]}: git's own files are changed by git operations only"
        )
    if len(found) == 1:
        raise Refused("bad_request", "this is the project itself; name a file in it")
    return found


def shown(name: str) -> str:
    """A file name as text that any JSON can hold: bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode(errors="backslashreplace")
