"""Paths: which ones code has no business with, and where it may write and delete.

The tables come first. `HOME` in a path stands for the home directory, however it was spelt.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import NamedTuple

from ..protocol.findings import Level

HOME = "~"
WORKSPACE = ("/data", "/workspace", "/tmp", "/var/tmp", "/dev/shm", f"{HOME}/.cache")
"""Below these anything may be written; relative paths are meant to start there."""
_HARMLESS = {"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty", "/dev/zero"}
_HARMLESS |= {"/dev/random", "/dev/urandom", "/dev/full", "/dev/fd"}

SECRETS: dict[str, Level] = {
    # path, with * for one or more names in it: what reading it is worth
    "/etc/shadow": "high",
    "/etc/gshadow": "high",
    "/etc/sudoers": "high",
    "/etc/passwd": "medium",
    "/etc/ssh/*": "high",
    "/etc/kubernetes/*": "high",
    "/proc/*/environ": "high",
    "/proc/*/mem": "high",
    "/proc/*/maps": "medium",
    "/proc/*/root": "high",
    "/proc/*/root/*": "high",
    "/proc/*/cwd/*": "medium",
    "/proc/kcore": "critical",
    "/proc/kallsyms": "medium",
    "/proc/sysrq-trigger": "critical",
    "/dev/mem": "critical",
    "/dev/kmem": "critical",
    "/run/docker.sock": "critical",
    "/var/run/docker.sock": "critical",
    "/run/containerd/*": "critical",
    "/run/secrets": "high",
    "/run/secrets/*": "high",
    "/var/run/secrets/*": "high",
    "*/.ssh": "high",
    "*/.ssh/*": "high",
    "*/.aws/*": "high",
    "*/.azure/*": "high",
    "*/.config/gcloud/*": "high",
    "*/.kube/config": "high",
    "*/.docker/config.json": "high",
    "*/.gnupg": "high",
    "*/.gnupg/*": "high",
    "*/.netrc": "high",
    "*/.pgpass": "high",
    "*/.git-credentials": "high",
    "*/.pypirc": "high",
    "*/.bash_history": "high",
    "*/.zsh_history": "high",
    "*/.python_history": "medium",
    "*/.mozilla/*": "high",
    "*/id_rsa": "high",
    "*/id_ed25519": "high",
}
_SYSTEM: tuple[str, ...] = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/opt",
    "/proc",
    "/root",
    "/run",
)
_SYSTEM += ("/sbin", "/sys", "/usr", "/var", "/home", "/srv")
_DEVICES = re.compile(r"/dev/(sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|mapper/|disk/|k?mem)")
_AT_LOGIN = re.compile(r".*/\.(bashrc|profile|bash_profile|zshrc|ssh/.*)|/etc/.*")
_NAMED = {path.replace("*/", f"{HOME}/", 1): path for path in SECRETS if not path.endswith("*")}


class Judged(NamedTuple):
    rule: str
    level: Level
    reason: str


def normal(path: str) -> str:
    """One spelling for a path: no `.`, `..`, `//` or `file://`, and one name for home directories."""
    path = path.removeprefix("file://").replace("\0", "?").replace("\1", "?")
    path = re.sub(r"^(/home/[^/]+|/root(?=/)|~[\w-]*|\$HOME|\$\{HOME\})(?=/|$)", HOME, path)
    path = posixpath.normpath(path) if path else path
    return re.sub(r"^//+", "/", path)


def reading(path: str) -> Judged | None:
    """What it means to read from this path."""
    where = normal(path)
    known = _secret(where)
    if known is None:
        return None
    return Judged("secrets", SECRETS[known], f"{known} holds what is not the code's to read")


def writing(path: str) -> Judged | None:
    """What it means to write to this path, or to make it."""
    where = normal(path)
    if where.startswith(("/dev/tcp/", "/dev/udp/")):
        return Judged("network", "high", "/dev/tcp opens a connection")
    if _DEVICES.match(where):
        return Judged(
            "device", "critical", "writing to a disk or to memory as a device destroys it"
        )
    if where == "/proc/sysrq-trigger":
        return Judged("device", "critical", "/proc/sysrq-trigger can stop the machine")
    if is_workspace(where) or where in _HARMLESS or where.startswith("/dev/fd/"):
        return None
    if _AT_LOGIN.fullmatch(where) or _secret(where):
        return Judged("write", "high", "it writes where settings and credentials are kept")
    if where in ("/", *_SYSTEM) or where.startswith(tuple(f"{top}/" for top in _SYSTEM)):
        return Judged("write", "high", "it writes to a directory of the system")
    return Judged("write", "medium", "it writes outside the workspace")


def deleting(path: str, *, whole: bool) -> Judged | None:
    """What it means to delete this path; `whole` is with everything below it."""
    where = normal(path)
    bare = where.removesuffix("/*").removesuffix("/.*") or "/"
    if whole and (bare in ("/", HOME, "/home", "/root", *_SYSTEM) or where == "/*"):
        return Judged("delete", "critical", "it deletes a whole system or home directory")
    if where in (*WORKSPACE, ".", "*", "./*", "..", ".*") or bare in WORKSPACE:
        return Judged("delete", "medium", "it deletes the whole workspace") if whole else None
    if is_workspace(where):
        return Judged("delete", "low", "it deletes in the workspace") if whole else None
    return Judged("delete", "high", "it deletes outside the workspace")


def moving(path: str) -> Judged | None:
    """What it means to take this path away from where it is, with all below it."""
    found = deleting(path, whole=True)
    return found if found and found.level == "critical" else writing(path)


def is_workspace(where: str) -> bool:
    """Whether a normal path is one that code may do with as it likes."""
    if where.startswith(("/", HOME)):
        return where.startswith(tuple(f"{top}/" for top in WORKSPACE)) or where in WORKSPACE
    return not where.startswith("..")


def _secret(where: str) -> str | None:
    if any(sign in where for sign in "*?[") and len(where) < 256:
        # The path is a pattern itself: which of the known ones would it find?
        for path, known in _NAMED.items():
            if _same_depth(where, path) and fnmatch.fnmatchcase(path, where):
                return known
    climbed = re.sub(r"^(\.\./)+", "/", where)  # as if from just below the root
    lead = climbed if climbed.startswith(("/", HOME)) else f"{HOME}/{where}"
    for known in SECRETS:
        if fnmatch.fnmatchcase(lead, known) or fnmatch.fnmatchcase(f"{lead}/", known):
            return known
    return None


def _same_depth(one: str, other: str) -> bool:
    return one.count("/") == other.count("/") and sum(c in "*?[" for c in one) < len(one) / 2
