"""Git in the project, without running what the project configures: no hooks, monitors, filters,
drivers, or pagers.

All of it stays in the sandbox in any case. What is switched off would run code of the project on a
mere look.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import Refused
from . import programs, project

MAX_COMMITS = 500
_MAX_FILES = 5_000
_SAFE = {
    "safe.directory": "*",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.editor": "true",
    "core.sshCommand": "false",
    "core.attributesFile": "/dev/null",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "log.showSignature": "false",
    "submodule.recurse": "false",
    "protocol.allow": "never",
    "diff.external": "",
    "core.quotePath": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
}
ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "cat",
    "LC_ALL": "C.UTF-8",
}
_LOOKING = ["--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--no-color"]
_NAME = re.compile(r"(?!-)(?!.*(?:\.\.|@\{|//|\.lock$))[\w./+-]{1,200}")
_ABSOLUTE = re.compile(
    rb"^(?:---|\+\+\+) (?!/dev/null)(/[^\t\n]*)(?=[^\n]*\n(?:\+\+\+ |@@ ))", re.MULTILINE
)
"""A head of a patch that names a file from the root of the file system; git would cut its first part."""
_AUTHOR = {"NAME": "kernelbroker", "EMAIL": "kernelbroker@localhost"}


def git_status() -> dict[str, Any]:
    """The branch, and the files that differ from the last commit."""
    done = output(
        "status",
        "--porcelain=v1",
        "-z",
        "--branch",
        "--untracked-files=all",
        "--ignore-submodules=all",
    )
    head, *items = programs.text(done).split("\0")
    branch = head.removeprefix("## ").removeprefix("No commits yet on ").partition("...")[0]
    files: list[dict[str, str]] = []
    left = iter(items)
    for item in left:
        if len(item) < 4 or len(files) >= _MAX_FILES:
            continue
        entry = {"status": item[:2].strip(), "path": item[3:]}
        if item[0] in "RC":
            entry["from"] = next(left, "")
        files.append(entry)
    return {"branch": branch, "files": files, "clean": not files}


def git_diff(
    base: str | None = None, staged: bool = False, paths: list[str] | None = None
) -> dict[str, Any]:
    """The changes since `base`, or of the working tree, as a patch that `apply_patch` takes."""
    argv = ["diff", *_LOOKING, "--binary"] + (["--cached"] if staged else [])
    if base is not None:
        argv.append(revision(base))
    done = ended(*argv, "--", *_paths(paths))
    if done.is_cut:
        raise Refused(
            "too_large", f"the diff has more than {programs.OUTPUT_BYTES:,} bytes; name paths"
        )
    return {"diff": programs.text(done.stdout)}


def git_log(max: int = 20, path: str | None = None) -> dict[str, Any]:
    """The latest commits."""
    if not 1 <= max <= MAX_COMMITS:
        raise Refused("bad_request", f"max is from 1 to {MAX_COMMITS}")
    fields = "%H%x1f%an%x1f%aI%x1f%s%x1f%b"
    argv = [
        "log",
        f"--max-count={max}",
        "-z",
        f"--format={fields}",
        "--no-color",
        "--no-show-signature",
    ]
    lines = programs.text(output(*argv, "--", *_paths([path] if path else None))).split("\0")
    names = ("commit", "author", "date", "subject", "body")
    return {
        "commits": [dict(zip(names, line.split("\x1f"), strict=False)) for line in lines if line]
    }


def git_branch(name: str | None = None, create: bool = True) -> dict[str, Any]:
    """Switch to a branch, which is created if it does not exist; without a name, list the branches."""
    listed = programs.text(output("branch", "--format=%(refname:short)")).splitlines()
    if name is not None:
        branch_name(name)
        if name not in listed and not create:
            raise Refused("not_found", f"there is no branch {name}")
        output(
            "switch",
            "--no-guess",
            "--no-recurse-submodules",
            *([] if name in listed else ["-c"]),
            name,
        )
        listed = sorted({*listed, name})
    current = programs.text(output("branch", "--show-current")).strip()
    return {"current": current, "branches": listed}


def git_commit(message: str, paths: list[str] | None = None) -> dict[str, Any]:
    """Commit all changes, or those of some paths."""
    if not message.strip() or "\0" in message:
        raise Refused("bad_request", "a commit needs a message")
    chosen = _paths(paths)
    output("add", "--all", "--", *(chosen or ["."]))
    author: dict[str, str] = {}
    for field, value in _AUTHOR.items():
        if ended("config", f"user.{field.lower()}", may_fail=True).status:
            author |= {f"GIT_AUTHOR_{field}": value, f"GIT_COMMITTER_{field}": value}
    argv = [
        "commit",
        "--no-verify",
        "--no-edit",
        "--no-post-rewrite",
        "--cleanup=whitespace",
        "--file=-",
    ]
    done = ended(
        *argv, "--", *chosen, env=author, data=message.encode(errors="replace"), may_fail=True
    )
    if done.status:
        said = (programs.text(done.stdout) + done.stderr).strip()
        if "nothing to commit" in said or "nothing added" in said or "no changes added" in said:
            raise Refused(
                "conflict", "there is nothing to commit: the files are as in the last commit"
            )
        raise Refused("failed", f"git commit: {said[:1000]}")
    commit = programs.text(output("rev-parse", "HEAD")).strip()
    changed = output("show", "--name-only", "--format=", "-z", *_LOOKING, "HEAD")
    branch = programs.text(output("branch", "--show-current")).strip()
    return {
        "commit": commit,
        "branch": branch,
        "files": [each for each in programs.text(changed).strip("\n").split("\0") if each][
            :_MAX_FILES
        ],
    }


def apply_patch(diff: str) -> dict[str, Any]:
    """Apply a unified diff: all of it, or nothing."""
    root = project.root()
    data = diff.encode(errors="surrogateescape")
    if not data.strip():
        raise Refused("bad_request", "the diff is empty")
    data += b"" if data.endswith(b"\n") else b"\n"
    argv = ["git", *options([]), "apply", "--whitespace=nowarn"]
    if (absolute := _ABSOLUTE.search(data)) is not None:
        shown = programs.text(absolute[1])[:200]
        raise Refused("security", f"{shown}: a patch names files from the project's root")
    env = {**ENV, **_place(root)}
    listed = programs.run([*argv, "--numstat", "-z", "-"], root, env=env, data=data)
    if listed.status:
        raise Refused("bad_request", f"this is no patch: {listed.stderr.strip()[:1000]}")
    files = [each.split("\t")[-1] for each in programs.text(listed.stdout).split("\0") if each]
    for each in files:
        project.writable(each)
    done = programs.run([*argv, "-"], root, env=env, data=data)
    if done.status:
        said = done.stderr.strip()[:2000]
        if "beyond a symbolic link" in said or "invalid path" in said:
            raise Refused("security", f"the patch leads out of the project: {said}")
        raise Refused("stale", f"the patch does not apply, and nothing was changed: {said}")
    return {"files": files, "diff": diff}


def output(*argv: str, may_fail: bool = False) -> bytes:
    """The output of a git command. Raises Refused."""
    return ended(*argv, may_fail=may_fail).stdout


def ended(
    *argv: str,
    env: dict[str, str] | None = None,
    data: bytes | None = None,
    may_fail: bool = False,
    settings: Mapping[str, str] | None = None,
    seconds: float = programs.SECONDS,
) -> programs.Ended:
    """Run a git command in the project.

    Args:
        may_fail: a failure is returned.
        settings: further settings of git.

    Raises:
        Refused: it failed, or the project is no repository.
    """
    root = project.root()
    environment = {**ENV, **_place(root), **(env or {})}
    filters = programs.run(
        [
            "git",
            *options([]),
            "config",
            "-z",
            "--name-only",
            "--get-regexp",
            r"^(filter|diff|merge)\..*\.",
        ],
        root,
        env=environment,
    )
    names = [each for each in programs.text(filters.stdout).split("\0") if each]
    command = ["git", *options(names, settings), *argv]
    done = programs.run(command, root, env=environment, data=data, seconds=seconds)
    if done.status and not may_fail and not done.is_cut:
        said = done.stderr.strip()[:1000]
        if "not a git repository" in said:
            raise Refused(
                "conflict", "the project is no git repository; run_command('git init') makes it one"
            )
        raise Refused("failed", f"git {argv[0]}: {said or f'status {done.status}'}")
    return done


def options(configured: list[str], settings: Mapping[str, str] | None = None) -> list[str]:
    """Options that switch off what runs programs; `configured` are the project's filters and drivers."""
    chosen = {**_SAFE, **(settings or {})}
    for name in configured:
        if name.rpartition(".")[2] in (
            "clean",
            "smudge",
            "process",
            "command",
            "textconv",
            "driver",
        ):
            chosen[name] = ""
        elif name.endswith(".required"):
            chosen[name] = "false"
    return [
        "--no-pager",
        *(part for name, value in chosen.items() for part in ("-c", f"{name}={value}")),
    ]


def _place(root: Path) -> dict[str, str]:
    """Variables that keep git in the project, whatever its configuration names as the working tree."""
    return {"GIT_CEILING_DIRECTORIES": str(root.parent), "GIT_WORK_TREE": str(root)}


def branch_name(name: str) -> str:
    """Check the name of a branch. Raises Refused."""
    if not _NAME.fullmatch(name):
        told = f"{name[:200]!r} is no name of a branch" if name else "no branch is checked out"
        raise Refused("bad_request", told)
    return name


def _paths(paths: list[str] | None) -> list[str]:
    found = []
    for path in paths or []:
        names = project.names(path)[1:]
        found.append("/".join(names) or ".")
    return found


def revision(name: str) -> str:
    if not re.fullmatch(r"(?!-)[\w./@{}^~+-]{1,200}", name):
        raise Refused("bad_request", f"{name[:200]!r} names no commit")
    return name
