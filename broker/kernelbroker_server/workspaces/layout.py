"""Where workspaces lie on the disk: their directories, records and locks.

Below the store's private directory each workspace has a directory, whose name is a digest of the tenant and
the name:

    lock            a broker holds it while one of its sessions has the workspace
    record.json     the tenant, the name, and the sandbox that has the files
    files/          the files, unless a sandbox has them

A symbolic link at `<public directory>/<tenant>/<name>` leads to the files, wherever they are. Everything
here blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.errors import Conflict

from ..kept_aside import set_aside

RECORD, FILES = "record.json", "files"
_LOCK = "lock"
_STORE_ID = re.compile(r"[0-9a-f]{32}")
MAX_COUNT = 1_000_000
"""Inodes of a workspace that are counted when it is put back."""
NO_TENANT = ""
"""The tenant of a workspace that is not kept after its session. It has no public path."""


class Record(msgspec.Struct, kw_only=True):
    """The content of `record.json`.

    Attributes:
        session_id: the session that has the workspace; empty if there is none.
        used_at: when a session last claimed or released it, in seconds since the epoch.
        retention: seconds to keep the workspace, if less than the setting of the store.
        sandbox: the workspace of the sandbox that has the files, relative to `data_dir` if it is below.
        size, files: bytes and inodes at the last release.
        max_size: bytes that it may hold, if less than the broker's setting.
        max_age: seconds to keep it after its last use, if less than the setting of the store.
        is_made: a client has made it, so it is kept also while it is empty.
        base: the manifest of the replica that the files come from; empty if there is none.
        is_saved: the replica has all of the files.
    """

    tenant: str
    name: str
    session_id: str = ""
    used_at: float = msgspec.field(default_factory=time.time)
    retention: float | None = None
    sandbox: str | None = None
    size: int = 0
    files: int = 0
    max_size: int | None = None
    max_age: float | None = None
    is_made: bool = False
    base: str = ""
    is_saved: bool = False


class Claimed(Exception):
    """Another session has the workspace. `session_id` is empty if it is unknown."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of a store.

    Attributes:
        data_dir: `BackendSet.data_dir`.
    """

    data_dir: Path

    @property
    def private(self) -> Path:
        """Has a directory for each workspace."""
        return self.data_dir / ".workspaces"

    @property
    def public(self) -> Path:
        """Has a link for each workspace, `<tenant>/<name>`."""
        return self.data_dir / "workspaces"

    def store_id(self) -> str:
        """The id of this directory among those that share a replica; made if there is none. Blocks."""
        path = self.data_dir / ".store-id"
        if path.exists() and not _STORE_ID.fullmatch(path.read_text("ascii", "replace")):
            set_aside(path, "damaged", "it has no id")
        if not path.exists():
            new = path.with_name(f".store-id-{secrets.token_hex(8)}")
            new.write_text(secrets.token_hex(16))
            with contextlib.suppress(FileExistsError):  # another broker was faster
                os.link(new, path)
            new.unlink()
        return path.read_text()

    def directory(self, tenant: str, name: str) -> Path:
        return self.private / _digest(tenant, name)

    def directories(self) -> list[Path]:
        return [path for path in self._entries() if not path.name.startswith(".")]

    def remains(self) -> list[Path]:
        """Directories whose removal was not completed."""
        return [path for path in self._entries() if path.name.startswith(".")]

    def records(self) -> list[Record]:
        """The records of all workspaces, in use or not, in the order of their last use."""
        found = [
            record
            for directory in self.directories()
            if (record := read_record(directory)) is not None
        ]
        return sorted(found, key=lambda record: record.used_at)

    def sandbox(self, record: Record) -> Path | None:
        """The workspace of the sandbox that has the files; None if none has."""
        return None if record.sandbox is None else self.data_dir / record.sandbox

    def link(self, record: Record) -> Path | None:
        """The public path; None for a workspace that has none."""
        if record.tenant == NO_TENANT:
            return None
        return self.public / _component(record.tenant) / _component(record.name)

    def links(self) -> dict[str, tuple[str, str, Path]]:
        """The public links, by the names of their directories: tenant, name, and the files' place."""
        return {
            _digest(link.parent.name, link.name): (
                link.parent.name,
                link.name,
                Path(os.path.realpath(link)),
            )
            for link in self.public.glob("*/*")
            if link.is_symlink()
        }

    def _entries(self) -> list[Path]:
        try:
            return list(self.private.iterdir())
        except FileNotFoundError:
            return []


def _digest(tenant: str, name: str) -> str:
    return hashlib.sha256(f"{tenant}\0{name}".encode()).hexdigest()[:40]


def _component(name: str) -> str:
    """Check a name before it becomes part of a path. The API accepts only names that pass."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot be part of a path")
    return name


def read_record(directory: Path) -> Record | None:
    """The record of a workspace; None if there is none that this version can read."""
    try:
        record = decode_json((directory / RECORD).read_bytes(), Record)
    except (OSError, msgspec.DecodeError):
        return None
    return record if _digest(record.tenant, record.name) == directory.name else None


def take_lock(directory: Path, create: int) -> int | None:
    """The lock's descriptor; None if the directory was removed meanwhile.

    Raises:
        Claimed
        FileNotFoundError
    """
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
    except FileNotFoundError:
        if create:
            return None
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), (directory / _LOCK).stat()):
            return lock
    except FileNotFoundError:
        pass
    except BlockingIOError:
        os.close(lock)
        record = read_record(directory)
        raise Claimed(record.session_id if record is not None else "") from None
    os.close(lock)
    return None


class WorkspaceInUse(Conflict):
    """A session has the workspace, or it is being changed."""


def in_use(name: str, session_id: str) -> WorkspaceInUse:
    """The error for a client whose workspace is claimed."""
    if not session_id:
        return WorkspaceInUse(
            f"workspace {name} is being written to, put away or removed; try again"
        )
    return WorkspaceInUse(
        f"workspace {name} is in use by session {session_id}; close that session, or choose another name"
    )
