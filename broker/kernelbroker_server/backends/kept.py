"""Workspaces on the disk while no sandbox has them, whatever becomes of the broker meanwhile.

Below `Backend.kept` each workspace has a directory, whose name follows from whose it is:

    lock            held while a session has the workspace, by whichever broker
    record.json     whose it is, and which sandbox has its files
    files/          the files, unless a sandbox has them

How files get from there to a sandbox and back stands in `moving.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import time
from pathlib import Path

import msgspec

from .directories import Directories, kept_below, remove_tree
from .moving import move_entries, unlock
from .usage import Usage, measure

log = logging.getLogger(__name__)

_LOCK, _RECORD, _FILES = "lock", "record.json", "files"
_TRIES = 100
MAX_COUNT = 1_000_000
"""Inodes of a workspace that are counted when it is put back."""


class Record(msgspec.Struct, kw_only=True):
    """
    Attributes:
        session_id: of the session that has the workspace, empty if none.
        used_at: when a session last got it or gave it back, in seconds since the epoch.
        retention: seconds that this one is kept, if less than the broker's own.
        sandbox: the workspace of the sandbox that has the files, relative to data_dir.
        size, files: bytes and inodes, when it was put back last.
    """

    tenant: str
    name: str
    session_id: str = ""
    used_at: float = msgspec.field(default_factory=time.time)
    retention: float | None = None
    sandbox: str | None = None
    size: int = 0
    files: int = 0


class Claimed(Exception):
    """Somebody else has the workspace; `session_id` names the session, where that is known."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id


class KeptWorkspace:
    """One workspace, locked by us: nobody else opens or removes it until `close` or `remove`."""

    def __init__(self, directory: Path, lock: int, record: Record) -> None:
        self.record = record
        self._directory = directory
        self._lock: int | None = lock

    @classmethod
    def claim(cls, kept: Path, record: Record) -> KeptWorkspace:
        """Lock the workspace of that tenant and name for `record.session_id`; made if absent.

        Raises:
            Claimed
            OSError: the disk is full, say.
        """
        directory = kept / _digest(record.tenant, record.name)
        for _ in range(_TRIES):  # whoever removes it takes the directory away under our hands
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            if (lock := _take_lock(directory, os.O_CREAT)) is not None:
                workspace = cls(directory, lock, record)
                try:
                    earlier = _read(directory)
                    if earlier is not None:
                        record.size, record.files = earlier.size, earlier.files
                        if earlier.sandbox is not None:
                            # Of a broker that died and that no other one has reaped yet.
                            workspace.take(kept.parent / earlier.sandbox, mounts=True)
                    workspace.write()
                except BaseException:
                    workspace.close()
                    raise
                return workspace
        raise Claimed("")

    def give(self, workspace: Path) -> None:
        """Move everything into a sandbox's workspace, but for what that has already."""
        self.record.sandbox = str(workspace.relative_to(self._directory.parents[1]))
        self.write()  # before the first file has left: `rescue` must find it
        if self.files.exists():
            move_entries(self.files, workspace)

    def take(self, workspace: Path, *, mounts: bool) -> None:
        """Move everything out of a workspace, whose sandbox is not used any more.

        Args:
            mounts: in its `shared` something is mounted; that directory is none of the files.
        """
        if not os.path.lexists(workspace):  # taken before
            return
        unlock(workspace)
        if mounts:
            with contextlib.suppress(OSError):  # not there, or not empty, and so a user's own
                (workspace / "shared").rmdir()
        try:
            workspace.rename(self.files)
        except OSError:  # there are files that the sandbox could not take
            self.files.mkdir(exist_ok=True)
            if left := move_entries(workspace, self.files):
                log.warning("%d entries of a workspace could not be kept", left)

    def has_files(self) -> bool:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.files) as found:
            return next(found, None) is not None
        return False

    @property
    def files(self) -> Path:
        """Where the files lie; need not be there."""
        return self._directory / _FILES

    def write(self) -> None:
        """Save the record. Raises OSError."""
        new = self._directory / f"{_RECORD}.new"
        new.write_bytes(msgspec.json.encode(self.record))
        new.replace(self._directory / _RECORD)

    def put_back(self, usage: Usage) -> None:
        """Save that no session has it any more, and how much it holds, and let go of it."""
        record = self.record
        record.session_id, record.sandbox, record.used_at = "", None, time.time()
        record.size, record.files = usage.size, usage.files
        try:
            self.write()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the lock; the record stays as it is. Twice does no harm."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def remove(self) -> None:
        """Remove it with all its files, and let go of it."""
        gone = self._withdraw()
        if gone is not None:
            await remove_tree(gone)

    def _withdraw(self) -> Path | None:
        """Take away its name. Where there are no files nothing is left; else what is to be removed."""
        gone = self._directory.with_name(f".{secrets.token_hex(8)}")
        try:
            self._directory.rename(gone)
        finally:
            self.close()
        try:
            (gone / _FILES).rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return gone
        shutil.rmtree(gone)  # two small files of our own
        return None


def records(kept: Path) -> list[Record]:
    """Of all workspaces, in use or not; in the order of their last use."""
    found = [record for directory in _directories(kept) if (record := _read(directory)) is not None]
    return sorted(found, key=lambda record: record.used_at)


def claim_unused(kept: Path, tenant: str, name: str) -> KeptWorkspace | None:
    """The workspace, locked, as its record has it; None if there is none. Raises Claimed."""
    directory = kept / _digest(tenant, name)
    with contextlib.suppress(FileNotFoundError):
        if (lock := _take_lock(directory, 0)) is not None:
            record = _read(directory) or Record(tenant=tenant, name=name)
            return KeptWorkspace(directory, lock, record)
    return None


def remains(kept: Path) -> list[Path]:
    """What somebody was about to remove who died over it."""
    try:
        return [path for path in kept.iterdir() if path.name.startswith(".")]
    except FileNotFoundError:
        return []


def settle(kept: Path, record: Record) -> None:
    """Put a workspace back whose session ended with no time to do so, if its files are here."""
    try:
        workspace = claim_unused(kept, record.tenant, record.name)
    except Claimed:
        return
    if workspace is not None:
        record = workspace.record
        if record.session_id and not (record.sandbox and (kept.parent / record.sandbox).exists()):
            workspace.put_back(measure(workspace.files, MAX_COUNT))
        workspace.close()


def rescue(dead: Directories) -> bool:
    """Keep the files that a dead broker's sessions had in its sandboxes; tells whether all is well.

    Its sandboxes must have been ended. Nothing of it may be removed if this fails.
    """
    kept = kept_below(dead.data.parent)
    well = True
    for directory in _directories(kept):
        record = _read(directory)
        if record is None or not (record.session_id or record.sandbox):
            continue
        if record.sandbox is not None and Path(record.sandbox).parts[0] != dead.broker_id:
            continue  # another broker's, dead or alive
        try:
            lock = _take_lock(directory, 0)
        except (Claimed, OSError):  # in use
            continue
        if lock is None:
            continue
        workspace = KeptWorkspace(directory, lock, record)
        try:
            if record.sandbox is not None:
                workspace.take(kept.parent / record.sandbox, mounts=True)
            workspace.put_back(measure(workspace.files, MAX_COUNT))
        except OSError:
            log.exception("The files of a dead broker's session could not be kept")
            well = False
    return well


def _directories(kept: Path) -> list[Path]:
    try:
        return [path for path in kept.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []


def _digest(tenant: str, name: str) -> str:
    return hashlib.sha256(f"{tenant}\0{name}".encode()).hexdigest()[:40]


def _read(directory: Path) -> Record | None:
    try:
        return msgspec.json.decode((directory / _RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def _take_lock(directory: Path, create: int) -> int | None:
    """The lock's descriptor; None if the directory was removed meanwhile.

    Raises:
        Claimed, FileNotFoundError
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
        record = _read(directory)
        raise Claimed(record.session_id if record is not None else "") from None
    os.close(lock)
    return None
