"""Git beyond the sandbox: clone, push, and a bundle of the work. The broker checks each URL first.

Connections go through the broker's proxy, which adds a credential where the operator has listed the forge.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from secrets import token_hex
from typing import Any

from .. import environment
from ..contract import PROJECT
from ..errors import Refused, refusing
from . import git, programs, project

SECONDS = 110.0
"""For a clone or a push; the broker waits a little longer for the answer."""
MAX_BUNDLE_BYTES = 4 * 1024**3
_HTTP_ONLY = {
    "protocol.http.allow": "always",
    "protocol.https.allow": "always",
    "credential.helper": "",
    "core.askPass": "false",
    "http.followRedirects": "initial",
    "push.recurseSubmodules": "no",
    "fetch.recurseSubmodules": "false",
    "push.gpgSign": "false",
}


def clone(url: str, ref: str | None = None, depth: int | None = None) -> dict[str, Any]:
    """Clone a repository as the project, without submodules. It appears when it is complete."""
    target = Path(environment.WORKSPACE, PROJECT)
    if os.path.lexists(target):
        raise Refused("conflict", "the session has a project")
    scratch = Path(environment.WORKSPACE, f".project-{token_hex(8)}")
    argv = ["clone", "--quiet", "--template=", "--no-recurse-submodules"]
    argv += [] if ref is None else [f"--branch={ref}"]
    argv += [] if depth is None else [f"--depth={depth}"]
    try:
        ended = programs.run(
            ["git", *git.options([], _HTTP_ONLY), *argv, "--", url, str(scratch)],
            Path(environment.WORKSPACE),
            env=git.ENV,
            seconds=SECONDS,
        )
        if ended.status:
            raise Refused("failed", f"git clone: {_said(ended)}")
        with refusing(PROJECT):
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    commit = programs.text(git.output("rev-parse", "--verify", "--quiet", "HEAD", may_fail=True))
    return {"path": project.SHOWN_ROOT, "commit": commit.strip()}


def git_origin() -> dict[str, Any]:
    """The URL that the project came from, the current branch, and its commit."""
    url = programs.text(git.output("config", "--get", "remote.origin.url", may_fail=True)).strip()
    branch = programs.text(git.output("branch", "--show-current")).strip()
    commit = programs.text(git.output("rev-parse", "--verify", "--quiet", "HEAD", may_fail=True))
    return {"url": url, "branch": branch, "commit": commit.strip()}


def push(url: str, branch: str) -> dict[str, Any]:
    """Push a branch to a URL. An answer of the server that refuses it is an error."""
    name = git.branch_name(branch)
    ended = git.ended(
        "push",
        "--quiet",
        "--no-verify",
        "--porcelain",
        url,
        f"refs/heads/{name}:refs/heads/{name}",
        settings=_HTTP_ONLY,
        seconds=SECONDS,
        may_fail=True,
    )
    if ended.status:
        raise Refused("failed", f"git push: {_said(ended)}")
    commit = programs.text(git.output("rev-parse", f"refs/heads/{name}")).strip()
    return {"branch": name, "commit": commit}


def git_bundle(base: str | None = None, branch: str | None = None) -> dict[str, Any]:
    """Write a bundle of a branch into the workspace, as `project.bundle`.

    Args:
        base: leave out what this commit has already.
        branch: the current one if left out.
    """
    current = programs.text(git.output("branch", "--show-current")).strip()
    name = git.branch_name(branch or current)
    target = Path(environment.WORKSPACE, f"{PROJECT}.bundle")
    scratch = target.with_name(f".project-{token_hex(8)}.bundle")
    wanted = [f"refs/heads/{name}", *([] if base is None else [f"^{git.revision(base)}"])]
    try:
        git.ended("bundle", "create", "--quiet", str(scratch), *wanted, seconds=SECONDS)
        commit = programs.text(git.output("rev-parse", f"refs/heads/{name}")).strip()
        with refusing(target.name):
            if target.is_dir() and not target.is_symlink():
                raise Refused("conflict", f"{target.name} is a directory of the workspace")
            scratch.rename(target)
    finally:
        scratch.unlink(missing_ok=True)
    size = target.stat().st_size
    return {"file": target.name, "branch": name, "commit": commit, "size": size}


def _said(ended: programs.Ended) -> str:
    said = (ended.stderr.strip() or programs.text(ended.stdout).strip())[-1000:]
    return said or f"status {ended.status}"
