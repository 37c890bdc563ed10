"""Snapshots of the project, and what has changed since: also without a git repository, and over commits.

A snapshot is a tree in a git directory of our own, outside of the project, so that nothing that the project
configures is used. It ends with the sandbox.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from ..errors import Refused
from . import programs, project

MAX_DIFF_BYTES = 1024**2
MAX_FILES = 1_000
_EXCLUDED = "__pycache__/\n*.pyc\n.pytest_cache/\nnode_modules/\n.venv/\n"
"""As in uploads: what tools leave behind is no change."""
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.quotePath": "false",
    "core.autocrlf": "false",
    "advice.addEmbeddedRepo": "false",
    "gc.auto": "0",
}


def snapshot() -> dict[str, Any]:
    """Remember the files of the project as they are."""
    return {"snapshot": take()}


def diff(snapshot: str) -> dict[str, Any]:
    """The changes of files since a snapshot, as a patch. Files that git ignores are left out."""
    if not re.fullmatch(r"[0-9a-f]{40}", snapshot):
        raise Refused("bad_request", "a snapshot is what the operation `snapshot` returned")
    return since(snapshot)


def take() -> str:
    """The id of a new snapshot. Raises Refused."""
    _prepare()
    # Fails for what cannot be read, such as a repository without commits inside; the rest is added.
    _git("add", "--all", "--ignore-errors", ".", may_fail=True)
    return programs.text(_git("write-tree").stdout).strip()


def since(snapshot: str) -> dict[str, Any]:
    """As `diff`, from a snapshot to the files as they are. Raises Refused."""
    if not _directory().is_dir() or _git("cat-file", "-e", snapshot, may_fail=True).status:
        raise Refused("not_found", "there is no such snapshot; it ends with the sandbox")
    now = take()
    listed = _git("diff-tree", "-r", "-z", "--name-only", snapshot, now)
    files = [project.shown(each) for each in programs.text(listed.stdout).split("\0") if each]
    ended = _git(
        "diff-tree",
        "-r",
        "-p",
        "--binary",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        snapshot,
        now,
    )
    text = programs.text(ended.stdout[:MAX_DIFF_BYTES])
    truncated = ended.is_cut or len(ended.stdout) > MAX_DIFF_BYTES
    if truncated:  # whole lines
        text = text[: text.rfind("\n") + 1]
    return {
        "diff": text,
        "diff_truncated": truncated,
        "files": files[:MAX_FILES],
        "files_truncated": len(files) > MAX_FILES,
    }


def _directory() -> Path:
    return Path(tempfile.gettempdir(), "kernelbroker-snapshots.git")


def _prepare() -> None:
    directory = _directory()
    if not directory.is_dir():
        options = ["--quiet", "--bare", "--template="]
        made = programs.run(["git", "init", *options, str(directory)], project.root(), env=_env())
        if made.status:
            raise Refused("failed", f"git init: {made.stderr.strip()[:500]}")
    for name, text in (("exclude", _EXCLUDED), ("alternates", _objects())):
        folder = directory / ("info" if name == "exclude" else "objects/info")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _objects() -> str:
    """The objects of the project's own repository, which need not be stored once more."""
    own = project.root() / ".git" / "objects"
    return f"{own}\n" if own.is_dir() and "\n" not in str(own) else ""


def _env() -> dict[str, str]:
    return {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C.UTF-8",
    }


def _git(*argv: str, may_fail: bool = False) -> programs.Ended:
    root = project.root()
    options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    place = [f"--git-dir={_directory()}", f"--work-tree={root}"]
    ended = programs.run(["git", *place, *options, *argv], root, env=_env())
    if ended.status and not may_fail and not ended.is_cut:
        raise Refused("failed", f"git {argv[0]}: {ended.stderr.strip()[:500]}")
    return ended
