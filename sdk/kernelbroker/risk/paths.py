"""Paths: which ones hold secrets, and where code may write and delete. `~` is any home directory."""

from __future__ import annotations

import fnmatch
import posixpath
import re

from ..protocol.findings import Level
from .collector import Rule, names

HOME = "~"
WORKSPACE = ("/data", "/workspace", "/tmp", "/var/tmp", "/dev/shm", f"{HOME}/.cache")
"""Below these anything may be written. Relative paths are below the workspace."""
_HARMLESS = re.compile(r"/dev/(null|stdout|stderr|stdin|tty|zero|u?random|full|fd/\d)")

SECRETS: dict[str, Level] = {
    **dict.fromkeys(names("/etc/passwd /proc/*/maps /proc/kallsyms"), "medium"),
    **dict.fromkeys(names("""/etc/shadow /etc/gshadow /etc/sudoers /etc/ssh/* /etc/kubernetes/*
        /proc/*/environ /proc/*/mem /proc/*/root /proc/*/root/* /run/secrets /run/secrets/*
        /var/run/secrets/* */.ssh */.ssh/* */.aws */.aws/* */.azure/* */.config/gcloud/* */.kube/config
        */.docker/config.json */.gnupg */.gnupg/* */.netrc */.pgpass */.git-credentials */.pypirc
        */.bash_history */.zsh_history */.mozilla/* */id_rsa */id_ed25519"""), "high"),
    **dict.fromkeys(names("""/proc/kcore /proc/sysrq-trigger /dev/mem /dev/kmem /run/docker.sock
        /var/run/docker.sock /run/containerd/*"""), "critical"),
}  # fmt: skip
"""Pattern of a path to the level of reading it."""

_SYSTEM = re.compile(
    r"/((bin|boot|dev|etc|lib|lib64|opt|proc|root|run|sbin|sys|usr|var|home|srv)(/.*)?)?"
)
_DEVICES = re.compile(r"/dev/(sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|mapper/|disk/|k?mem)")
_STARTUP_FILES = re.compile(r".*/\.(bashrc|profile|bash_profile|zshrc|ssh/.*)|/etc/.*")
_SECRET_PATTERN = re.compile("|".join(fnmatch.translate(pattern) for pattern in SECRETS))
_HOMES = re.compile(r"^(/home/[^/]+|/root(?=/)|~[\w-]*|\$HOME|\$\{HOME\})(?=/|$)")


def reading(path: str) -> Rule | None:
    """The rule for reading a path."""
    pattern = _secret(_normal(path))
    return (
        None if pattern is None else Rule("secrets", SECRETS[pattern], f"{pattern} holds secrets")
    )


def writing(path: str) -> Rule | None:
    """The rule for writing to a path or creating it."""
    path = _normal(path)
    if path.startswith(("/dev/tcp/", "/dev/udp/")):
        return Rule("network", "high", "/dev/tcp opens a connection")
    if _DEVICES.match(path) or path == "/proc/sysrq-trigger":
        return Rule("device", "critical", "writing to a device can destroy the machine's data")
    if _HARMLESS.fullmatch(path) or _is_workspace(path):
        return None
    if _STARTUP_FILES.fullmatch(path) or _secret(path):
        return Rule("write", "high", "writes where settings and credentials are kept")
    if _SYSTEM.fullmatch(path):
        return Rule("write", "high", "writes to a system directory")
    return Rule("write", "medium", "writes outside the workspace")


def deleting(path: str, *, recursive: bool) -> Rule | None:
    """The rule for deleting a path."""
    path = _normal(path)
    directory = re.sub(r"/\.?\*$", "", path) or "/"
    if recursive and (
        directory == HOME or (_SYSTEM.fullmatch(directory) and directory.count("/") == 1)
    ):
        return Rule("delete", "critical", "deletes a whole system or home directory")
    if _is_workspace(path):
        level: Level = "medium" if directory in (*WORKSPACE, ".", "*", ".*") else "low"
        return Rule("delete", level, "deletes directories of the workspace") if recursive else None
    return Rule("delete", "high", "deletes outside the workspace")


def _normal(path: str) -> str:
    """The path without `.`, `..` and `file://`, with `~` for a home directory."""
    path = _HOMES.sub(HOME, path.removeprefix("file://"))
    return re.sub(r"^//+", "/", posixpath.normpath(path)) if path else path


def _is_workspace(path: str) -> bool:
    if path.startswith(("/", HOME)):
        return path in WORKSPACE or path.startswith(tuple(f"{top}/" for top in WORKSPACE))
    return not path.startswith("..")


def _secret(path: str) -> str | None:
    """The pattern of secrets that a path matches."""
    path = re.sub(r"^(\.\./)+", "/", path)  # as seen from a directory below the root
    path = path if path.startswith(("/", HOME)) else f"{HOME}/{path}"
    if len(path) > 1024 or not _SECRET_PATTERN.match(path):
        return None
    return next(pattern for pattern in SECRETS if fnmatch.fnmatchcase(path, pattern))
