"""Writes a backup: the stored state, the workspaces and the checkpoints of a broker, also while it runs.

The state is a consistent copy of the database. Files that code writes to meanwhile are copied as they are
when they are read. The archive is a tar file:

    backup.json                          the version that wrote it, and when
    state/                               the database, what is not in it yet, and keys
    workspaces/DIGEST/record.json        a workspace, as in the store's directory
    workspaces/DIGEST/files-N/           its files; N counts the attempts, if a session opened it meanwhile
    checkpoints/DIGEST/                  the checkpoints of a tenant
    complete.json                        comes last: the directory of files of each workspace
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import json
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

from ..credentials import TOKEN
from ..lasting_key import LASTING_KEYS
from ..sessions.journal import left_segments
from ..sessions.schema import MIGRATIONS
from ..sessions.state_directory import DATABASE, LOCK
from ..state_copies import copied
from ..workspaces.layout import FILES, NO_TENANT, RECORD, Layout, Record, read_record
from .trees import Counts, add_tree

FORMAT = 1
ABOUT, COMPLETE = "backup.json", "complete.json"
STATE, WORKSPACES, CHECKPOINTS = "state", "workspaces", "checkpoints"
_COMPRESSED = (".gz", ".tgz")
_LEVEL = 1
_ATTEMPTS = 5
"""To copy a workspace that sessions open and close meanwhile."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker keeps what is to be saved.

    Attributes:
        state_dir: None if it keeps no state.
    """

    data_dir: Path
    state_dir: Path | None

    @property
    def checkpoints(self) -> Path:
        return self.data_dir / ".checkpoints"


@dataclass(slots=True)
class Written(Counts):
    """What a backup has, besides files."""

    workspaces: int = 0
    path: Path = Path()


def write_backup(place: Place, target: Path) -> Written:
    """Write a backup.

    Args:
        target: the file, compressed if its name ends with `.gz` or `.tgz`; or a directory, in which a file
            is named after the time.

    Raises:
        NoCopy: the broker that runs does not answer.
        OSError: such as a full disk. No incomplete file is left.
    """
    if target.is_dir():
        target /= time.strftime("kernelbroker-backup-%Y%m%d-%H%M%S.tar.gz")
    if target.exists():
        raise FileExistsError(None, "it exists already; name another file", str(target))
    written = Written(path=target)
    with tempfile.NamedTemporaryFile(  # mode 0600
        dir=target.absolute().parent, prefix=f".{target.name}.", delete=False
    ) as file:
        try:
            with (
                _compressed(file, target) as stream,
                tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                _write(archive, place, written)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).rename(target)
        except BaseException:
            Path(file.name).unlink()
            raise
    return written


@contextlib.contextmanager
def _compressed(file: IO[bytes], target: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if target.suffix not in _COMPRESSED:
        yield file
        return
    with gzip.GzipFile("", "wb", _LEVEL, file) as stream:
        yield stream


def _write(archive: tarfile.TarFile, place: Place, written: Written) -> None:
    about = {
        "format": FORMAT,
        "version": version("kernelbroker-server"),
        "created_at": time.time(),
        "schema": len(MIGRATIONS),
    }
    _add(archive, ABOUT, json.dumps(about).encode())
    for name in (STATE, WORKSPACES, CHECKPOINTS):
        _add_directory(archive, name)
    # The state comes first: what it names is then saved as it was, or as it became.
    if place.state_dir is not None and place.state_dir.is_dir():
        _add_state(archive, place.state_dir)
    files = _add_workspaces(archive, Layout(place.data_dir), written)
    if place.checkpoints.is_dir():
        _add_checkpoints(archive, place.checkpoints, written)
    _add(archive, COMPLETE, json.dumps({"files": files}).encode())


def _add_state(archive: tarfile.TarFile, directory: Path) -> None:
    for name in (*LASTING_KEYS, TOKEN):
        with contextlib.suppress(FileNotFoundError):
            _add(archive, f"{STATE}/{name}", (directory / name).read_bytes())
    if (directory / DATABASE).exists() or (directory / LOCK).exists():
        with _still(directory) as (database, segments):
            if database.exists():
                archive.add(database, f"{STATE}/{DATABASE}")
            for each in segments:
                archive.add(each, f"{STATE}/{each.name}")


@contextlib.contextmanager
def _still(directory: Path) -> Iterator[tuple[Path, list[Path]]]:
    """A database that nobody changes, and the files of the journal that are not in it."""
    with (directory / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a broker runs
            with copied(directory) as copy:
                yield copy / DATABASE, []
            return
        with tempfile.TemporaryDirectory(dir=directory, prefix=".copy-") as name:
            copy = Path(name, DATABASE)
            if (directory / DATABASE).exists():
                _copy_database(directory / DATABASE, copy)
            yield copy, [each.path for each in left_segments(directory)]


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database that no broker has. Raises OSError."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{source}?mode=rw", uri=True)) as found,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            found.execute("PRAGMA locking_mode = EXCLUSIVE")  # no file of shared memory
            found.backup(copy)
    except sqlite3.Error as exc:
        raise OSError(None, f"{exc}; `kernelbroker doctor` says more", str(source)) from exc


def _add_workspaces(archive: tarfile.TarFile, layout: Layout, written: Written) -> dict[str, str]:
    """Returns the directory of the files of each workspace."""
    files = {}
    for directory in layout.directories():
        for attempt in range(_ATTEMPTS):
            record = read_record(directory)
            if record is None or record.tenant == NO_TENANT:  # removed, or not to be kept
                break
            prefix = f"{WORKSPACES}/{directory.name}"
            if not attempt:
                _add_directory(archive, prefix)
            name = f"files-{attempt}"
            _add_files(archive, layout, directory, record, f"{prefix}/{name}", written)
            files[directory.name] = name
            if _same(record, read_record(directory)) or attempt == _ATTEMPTS - 1:
                _add(archive, f"{prefix}/{RECORD}", json.dumps(_plain(record)).encode())
                written.workspaces += 1
                break
    return files


def _add_files(
    archive: tarfile.TarFile,
    layout: Layout,
    directory: Path,
    record: Record,
    prefix: str,
    written: Written,
) -> None:
    # In this order nothing is missed while files are moved into a sandbox. What comes later counts.
    for each in (directory / FILES, layout.sandbox(record)):
        if each is not None and each.is_dir():
            add_tree(archive, each, prefix, written)


def _same(before: Record, after: Record | None) -> bool:
    """Whether no session opened or released the workspace in between, so that no file was moved."""
    return after is not None and (before.session_id, before.sandbox, before.used_at) == (
        after.session_id,
        after.sandbox,
        after.used_at,
    )


def _plain(record: Record) -> dict[str, object]:
    """The record of a workspace that no session has."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return {**fields, "session_id": "", "sandbox": None}


def _add_checkpoints(archive: tarfile.TarFile, directory: Path, written: Written) -> None:
    for tenant in sorted(directory.iterdir()):
        _add_directory(archive, f"{CHECKPOINTS}/{tenant.name}")
        for description in sorted(tenant.glob("*.json")):
            _add_checkpoint(archive, description, f"{CHECKPOINTS}/{tenant.name}", written)


def _add_checkpoint(
    archive: tarfile.TarFile, description: Path, prefix: str, written: Written
) -> None:
    for _ in range(_ATTEMPTS):  # it may be replaced meanwhile, and its data removed
        try:
            text = description.read_bytes()
            name = str(json.loads(text)["data"])
            with (description.parent / name).open("rb") as data:
                info = archive.gettarinfo(arcname=f"{prefix}/{name}", fileobj=data)
                archive.addfile(info, data)
                written.size += info.size
        except FileNotFoundError:
            if not description.exists():
                return
        else:
            _add(archive, f"{prefix}/{description.name}", text)
            written.files += 1
            return


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), 0o600, int(time.time())
    archive.addfile(info, io.BytesIO(content))


def _add_directory(archive: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o700, int(time.time())
    archive.addfile(info)
