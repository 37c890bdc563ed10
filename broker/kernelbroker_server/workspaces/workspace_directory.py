"""One workspace on the disk, locked. `layout.py` describes what lies where. Everything here blocks."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import time
from pathlib import Path

import msgspec
from kernelbroker_kernel.contract import PROJECT

from ..backends.base import Usage
from ..backends.directories import seize_lock
from .file_moves import change_owner, move_entries, unlock
from .layout import FILES, RECORD, Claimed, Layout, Record, read_record, take_lock

log = logging.getLogger(__name__)

_ATTEMPTS = 100


class WorkspaceDirectory:
    """A locked workspace: no other session or broker can open or remove it until `close` or `withdraw`."""

    def __init__(self, layout: Layout, directory: Path, lock: int, record: Record) -> None:
        self.record = record
        self._layout = layout
        self._directory = directory
        self._lock: int | None = lock

    @classmethod
    def claim(
        cls, layout: Layout, record: Record, held_by: Path | None = None
    ) -> WorkspaceDirectory:
        """Lock the workspace of `record` for its session. Makes the workspace if there is none.

        Args:
            held_by: the workspace of the session's living sandbox, which may have the files.

        Raises:
            Claimed
            OSError: such as a full disk.
        """
        directory = layout.directory(record.tenant, record.name)
        for _ in range(_ATTEMPTS):  # another process may remove the directory meanwhile
            layout.private.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            if (lock := _lock(layout, directory, held_by)) is not None:
                workspace = cls(layout, directory, lock, record)
                try:
                    earlier = read_record(directory)
                    if earlier is not None:
                        _carry_over(earlier, record)
                        holder = layout.sandbox(earlier)
                        if holder is not None and holder == held_by:
                            record.sandbox = earlier.sandbox
                        elif holder is not None:
                            # Its broker died, and no broker has taken the files back yet.
                            workspace.take(holder, mounts=True)
                    workspace.write()
                except BaseException:
                    workspace.close()
                    raise
                return workspace
        raise Claimed("")

    @classmethod
    def claim_unused(cls, layout: Layout, tenant: str, name: str) -> WorkspaceDirectory | None:
        """Lock an existing workspace, and keep its record. None if there is none. Raises Claimed."""
        directory = layout.directory(tenant, name)
        with contextlib.suppress(FileNotFoundError):
            if (lock := take_lock(directory, 0)) is not None:
                record = read_record(directory) or Record(tenant=tenant, name=name)
                return cls(layout, directory, lock, record)
        return None

    def give(self, workspace: Path) -> None:
        """Move all files into a sandbox's workspace, except names that exist there."""
        data_dir = self._layout.data_dir
        is_below = workspace.is_relative_to(data_dir)
        self.record.sandbox = str(workspace.relative_to(data_dir) if is_below else workspace)
        self.write()  # before any file moves, so that `rescue` can find it
        self._publish(workspace)  # before the move, so that new files of an application go there
        if self.files.exists():
            change_owner(self.files, workspace.stat().st_uid)
            move_entries(self.files, workspace, replace=False)

    def take(self, workspace: Path, *, mounts: bool) -> None:
        """Move all files out of a sandbox's workspace. All processes of the sandbox have ended.

        Args:
            mounts: whether the directories `shared` and `project` may have been mount points. They are then
                removed if they are empty.
        """
        if os.path.lexists(workspace):  # otherwise the files were taken earlier
            unlock(workspace)
            if mounts:
                for name in ("shared", PROJECT):
                    with contextlib.suppress(OSError):  # it is missing, or has files of the user
                        (workspace / name).rmdir()
            try:
                workspace.rename(self.files)
            except OSError:  # some files stayed here, since the sandbox had their names
                self.files.mkdir(exist_ok=True)
                if os.geteuid() == 0:
                    os.chown(self.files, workspace.stat().st_uid, -1)
                if left := move_entries(workspace, self.files, replace=True):
                    log.warning("%d entries of a workspace could not be kept", left)
        self.publish()

    def has_files(self) -> bool:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.files) as found:
            return next(found, None) is not None
        return False

    @property
    def files(self) -> Path:
        """The directory of the files; it may be missing."""
        return self._directory / FILES

    @property
    def new_files(self) -> Path:
        """Where `replace_files` takes a directory from; nothing of an earlier attempt is needed."""
        return self._directory / f"{FILES}.new"

    def replace_files(self, new: Path) -> None:
        """Put another directory in the place of the files, which are removed later. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.files.rename(self._layout.private / f".{secrets.token_hex(8)}")
        new.rename(self.files)
        self.publish()

    def write(self) -> None:
        """Save the record. Raises OSError."""
        new = self._directory / f"{RECORD}.new"
        new.write_bytes(msgspec.json.encode(self.record))
        new.replace(self._directory / RECORD)

    def put_back(self, usage: Usage) -> None:
        """Record that no session has it, and its usage. Then unlock it."""
        record = self.record
        record.session_id, record.sandbox, record.used_at = "", None, time.time()
        record.size, record.files = usage.size, usage.files
        try:
            self.write()
            self.publish()
        finally:
            self.close()

    def publish(self) -> None:
        """Make the public link lead to the files in the store. Raises OSError."""
        self._publish(self.files)

    def close(self) -> None:
        """Unlock it without changing the record. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def withdraw(self) -> Path | None:
        """Remove the public link, rename the directory and unlock it.

        Returns the renamed directory, for the caller to remove; None if it had no files and is removed.
        """
        gone = self._directory.with_name(f".{secrets.token_hex(8)}")
        try:
            if (link := self._layout.link(self.record)) is not None:
                with contextlib.suppress(OSError):
                    link.unlink()
            self._directory.rename(gone)
        finally:
            self.close()
        try:
            (gone / FILES).rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return gone
        shutil.rmtree(gone)  # only the lock and the record
        return None

    def _publish(self, files: Path) -> None:
        """Make the public link lead to `files`. Raises OSError."""
        target = os.path.relpath(files, self._layout.public / self.record.tenant)
        if (link := self._layout.link(self.record)) is None or _leads_to(link, target):
            return
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = link.with_name(f".{secrets.token_hex(8)}")
        new.symlink_to(target)
        try:
            new.replace(link)
        except OSError:  # a directory of an application is left alone
            new.unlink()
            log.warning("%s cannot lead to its workspace: something else is there", link)


def _lock(layout: Layout, directory: Path, held_by: Path | None) -> int | None:
    """As `take_lock`; who has taken over the sandbox with the files takes the lock as well."""
    try:
        return take_lock(directory, os.O_CREAT)
    except Claimed:
        earlier = read_record(directory)
        if held_by is None or earlier is None or layout.sandbox(earlier) != held_by:
            raise
        return seize_lock(directory)


def _carry_over(earlier: Record, record: Record) -> None:
    """Copy what belongs to the workspace, and not to the session that has it."""
    record.size, record.files = earlier.size, earlier.files
    record.max_size, record.max_age = earlier.max_size, earlier.max_age
    record.is_made = earlier.is_made
    record.base, record.is_saved = earlier.base, earlier.is_saved
    if not record.session_id:
        record.retention = earlier.retention


def _leads_to(link: Path, target: str) -> bool:
    with contextlib.suppress(OSError):
        return str(link.readlink()) == target
    return False
