"""Checks of the directories: owners, room, and whether what the last broker has stored can be read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..advice import as_root, command, sdk
from ..backends.sockets import SUN_PATH_BYTES
from ..kept_aside import kept_aside
from ..lasting_key import LASTING_KEYS, DamagedKey, read_key
from ..paths import foreign_files, named_paths
from ..sessions.journal import Damaged, SegmentReader, left_segments
from ..sessions.schema import APPLICATION_ID, MIGRATIONS
from ..sessions.state_directory import DATABASE, LOCK
from ..workspaces.checkpoint_directory import unread_descriptions
from ..workspaces.directory_store import CHECKPOINTS
from ..workspaces.disk_room import Disk, kept_of
from ..workspaces.layout import RECORD, Layout
from ..workspaces.recovery import damaged_records
from .findings import Finding, error, ok, warning
from .patient import Patient

_FEWEST_BYTES = 256 * 1024**2
_FEWEST_INODES = 10_000
_SOCKET_NAME = "/01234567/0123456789ab.sock"
"""What follows run_dir in the path of a sandbox's socket."""


def directories(patient: Patient) -> list[Finding]:
    """Whether the broker can write to its directories, and they have room."""
    found: list[Finding] = []
    devices: dict[int, Path] = {}
    for key, path in _directories(patient):
        if faults := _directory(patient, key, path):
            found += faults
            continue
        devices.setdefault(_nearest(path).stat().st_dev, path)
        if key.endswith("run_dir") and len(os.fsencode(path)) + len(_SOCKET_NAME) >= SUN_PATH_BYTES:
            message = f"{key}: {path} is too long for the paths of sockets, which have 107 bytes"
            found.append(error("directories", message, f"Set {key} to a shorter path"))
    for path in devices.values():
        found += _room(patient, path)
    return found or [ok("directories", ", ".join(map(str, devices.values())))]


def _directories(patient: Patient) -> Iterator[tuple[str, Path]]:
    for name in patient.backends:
        kind = name.partition("-")[0]
        yield f"{kind}.data_dir", patient.data_dir(name)
        yield f"{kind}.run_dir", patient.run_dir(name)
    if patient.state_dir is not None:
        yield "state_dir", patient.state_dir
    for key in ("log_file", "audit_log"):
        file = getattr(patient.settings, key)
        if file is not None:
            yield key, file.absolute().parent


def _directory(patient: Patient, key: str, path: Path) -> list[Finding]:
    existing = _nearest(path)
    if not existing.is_dir():
        remedy = f"Remove that file, or set {key} to another path"
        return [error("directories", f"{key}: {existing} is not a directory", remedy)]
    owner = existing.stat().st_uid
    if existing == path and key == "state_dir" and owner != os.geteuid():
        message = f"{key}: {path} belongs to user {owner}, and the broker runs as {os.geteuid()}"
        return [error("directories", message, as_root("chown", "-R", os.geteuid(), path))]
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        message = f"{key}: the broker cannot write to {existing}: {exc.strerror}"
        owned = as_root("chown", os.geteuid(), existing)
        remedy = f"Free space, or give it to the broker's user: {owned}"
        return [error("directories", message, remedy)]
    if key.endswith("data_dir") and (names := foreign_files(path, named_paths(patient.settings))):
        message = f"{key}: {path} has files that are not the broker's: {', '.join(names[:3])}"
        return [error("directories", message, f"Set {key} to a new or an empty directory")]
    return []


def _nearest(path: Path) -> Path:
    """The path, or the first of its parents that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def _room(patient: Patient, path: Path) -> list[Finding]:
    existing = _nearest(path)
    free, inodes = shutil.disk_usage(existing).free, os.statvfs(existing)
    remedy = (
        f"Free space: {sdk('workspaces')} lists the workspaces and deletes them with --delete; "
        "sessions.workspaces_size and sessions.results_size bound what is kept. Or use a larger file system"
    )
    where = f"the file system of {path}"
    if free < _FEWEST_BYTES:
        return [error("directories", f"{where} has only {free // 1024**2} MiB left", remedy)]
    disk, kept = Disk.of(existing), int(patient.settings.limits.disk_reserve)
    if disk.free < kept_of(disk, kept):
        message = f"{where} has {free // 1024**2} MiB left, and limits.disk_reserve is more"
        return [error("directories", f"{message}: no workspace may grow", remedy)]
    if inodes.f_files and inodes.f_favail < _FEWEST_INODES:
        message = f"{where} has room for only {inodes.f_favail} more files"
        return [error("directories", message, remedy)]
    wanted = max(each.workspace_size for each in patient.settings.templates.values())
    if free < wanted and path == patient.data_dir(patient.backends[0]):
        message = f"{where} has {free // 1024**2} MiB left, less than one workspace may take"
        return [warning("directories", message, remedy)]
    return []


def state(patient: Patient) -> list[Finding]:
    """Whether what an earlier broker has stored is complete and of a version that this one knows."""
    path = patient.state_dir
    if path is None or not path.is_dir():
        return [ok("state", "nothing is stored yet")]
    found = [
        warning(
            "state",
            f"{each} was kept aside, since it could not be used",
            "If it is of a newer version, go back to that and rename it; else move or delete it",
        )
        for each in kept_aside(path)
    ]
    found += _keys(path)
    try:
        with _locked(path):
            found += _database(path / DATABASE)
            found += _journal(path)
    except BlockingIOError:
        if patient.running is None:
            message = f"a process has {path}, but no broker answers"
            remedy = f"Look into its log, then end it: its pid is in {path / LOCK}"
            found.append(error("state", message, remedy))
    except OSError as exc:
        remedy = f"Give it to the broker's user: {as_root('chown', '-R', os.geteuid(), path)}"
        found.append(error("state", f"{exc.filename}: {exc.strerror}", remedy))
    return found or [ok("state", f"{path} can be read")]


def files(patient: Patient) -> list[Finding]:
    """Whether what describes workspaces and checkpoints can be read."""
    found: list[Finding] = []
    try:
        for path in {patient.data_dir(name) for name in patient.backends}:
            for directory in damaged_records(Layout(path)):
                message = f"{directory / RECORD}: the record of a workspace cannot be read"
                remedy = f"Start the broker, which makes a new one from the link in {path / 'workspaces'}"
                found.append(warning("files", message, remedy))
            for tenant in (path / CHECKPOINTS).glob("*"):
                for each in unread_descriptions(tenant):
                    remedy = "If it is of a newer version, go back to that; else move or delete it"
                    found.append(warning("files", f"{each}: the checkpoint cannot be read", remedy))
    except OSError as exc:
        remedy = "Let the broker's user read it"
        found.append(error("files", f"{exc.filename}: {exc.strerror}", remedy))
    return found or [ok("files", "workspaces and checkpoints can be read")]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep brokers out meanwhile. Raises BlockingIOError if one has the directory."""
    if not (path / LOCK).exists():
        yield
        return
    with (path / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _keys(path: Path) -> list[Finding]:
    found = []
    for name in LASTING_KEYS:
        try:
            if (path / name).exists():
                read_key(path / name)
        except (OSError, DamagedKey) as exc:
            remedy = (
                f"Remove it, which makes what it has signed invalid: {command('rm', path / name)}"
            )
            found.append(error("state", str(exc), remedy))
    return found


def _database(path: Path) -> list[Finding]:
    restore = (
        "Restore a backup by kernelbroker restore (docs/operations.md). Otherwise the next broker keeps "
        "the file aside, and begins with an empty one"
    )
    if not path.exists():
        return []
    try:
        connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True)
        with contextlib.closing(connection):
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # no file of shared memory
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (problem,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as exc:
        return [error("state", f"{path}: {exc}", f"Let the broker's user write to {path}")]
    except sqlite3.DatabaseError as exc:
        return [error("state", f"{path} is damaged: {exc}", restore)]
    if version and application != APPLICATION_ID:
        return [error("state", f"{path} is the file of another program", restore)]
    if version > len(MIGRATIONS):
        message = f"{path} is of a newer version of kernelbroker"
        remedy = "Install that version again: this one would begin with an empty file"
        return [error("state", message, remedy)]
    return [] if problem == "ok" else [error("state", f"{path} is damaged: {problem}", restore)]


def _journal(path: Path) -> list[Finding]:
    for segment in left_segments(path):
        reader = SegmentReader(segment)
        try:
            while reader.batch():
                pass
        except Damaged as exc:
            remedy = "Restore a backup, or start the broker: it keeps the file aside, and the rest"
            return [error("state", f"{segment.path} is damaged: {exc}", remedy)]
        finally:
            reader.close()
    return []
