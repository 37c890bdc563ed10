"""Restores a backup while no broker runs. What was there before is kept aside, or refused.

Everything is unpacked beside its place first, so that a damaged archive changes nothing. What is kept for a
certain time (workspaces, checkpoints) is kept for as long as when the backup was made.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..sessions.schema import MIGRATIONS
from ..sessions.state_directory import DATABASE, LOCK
from ..workspaces.layout import FILES, RECORD, Layout
from .backup import ABOUT, CHECKPOINTS, COMPLETE, FORMAT, STATE, WORKSPACES, Place
from .trees import Damaged, unpack

_GZIP, _CHUNK = b"\x1f\x8b", 1024**2
_STATE_FILES = (DATABASE, "journal-*")


class Refused(Exception):
    """The backup cannot be restored here. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored.

    Attributes:
        made_at: when the backup was made, in seconds since the epoch.
        aside: the directories of what was there before.
    """

    version: str
    made_at: float
    workspaces: int
    aside: tuple[Path, ...]


def restore_backup(place: Place, source: Path, *, replace: bool = False) -> Restored:
    """Restore a backup.

    Args:
        replace: keep aside what is there already, instead of a refusal.

    Raises:
        Refused: a broker runs, or there is something already.
        Damaged: the archive is not complete.
        OSError
    """
    with _without_broker(place.state_dir):
        there = _there(place)
        if there and not replace:
            raise Refused(
                f"{there[0]} exists already. Pass --replace to keep it aside and to restore the backup in "
                "its place"
            )
        place.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".restore-", dir=place.data_dir))  # mode 0700
        try:
            about, complete = _unpack(source, staging)
            age = max(0.0, time.time() - float(about["created_at"]))
            count = _prepare_workspaces(staging / WORKSPACES, complete["files"], age)
            _prepare_checkpoints(staging / CHECKPOINTS, age)
            _give_to_owner(staging, place.data_dir)
            aside = _put_aside(place, there)
            _put_in_place(place, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return Restored(str(about["version"]), float(about["created_at"]), count, aside)


@contextlib.contextmanager
def _without_broker(state_dir: Path | None) -> Iterator[None]:
    """Keep brokers away. Raises Refused if one runs."""
    if state_dir is None or not (state_dir / LOCK).exists():
        yield
        return
    with (state_dir / LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"a broker runs with the state_dir {state_dir}. Stop it first") from None
        yield


def _there(place: Place) -> list[Path]:
    """What a broker has left here."""
    layout = Layout(place.data_dir)
    found = [each for each in (layout.private, place.checkpoints) if _has_content(each)]
    state = place.state_dir
    if state is not None and any(any(state.glob(each)) for each in _STATE_FILES):
        found.insert(0, state)
    return found


def _has_content(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _unpack(source: Path, staging: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Unpack the archive; returns its first and its last file. Raises Damaged, Refused."""
    with source.open("rb") as file:
        is_compressed = file.read(2) == _GZIP
        file.seek(0)
        stream = gzip.GzipFile(fileobj=file) if is_compressed else file
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                unpack(archive, staging)
            while stream.read(_CHUNK):  # to its end, where the checksum is
                pass
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as exc:
            raise Damaged(f"{source} is damaged: {exc}") from exc
    try:
        about = json.loads((staging / ABOUT).read_bytes())
        complete = json.loads((staging / COMPLETE).read_bytes())
    except (FileNotFoundError, ValueError) as exc:
        raise Damaged(f"{source} is not a complete backup") from exc
    if about["format"] > FORMAT or about["schema"] > len(MIGRATIONS):
        raise Refused(
            f"{source} was written by kernelbroker {about['version']}, which is newer. Install that version"
        )
    return about, complete


def _prepare_workspaces(directory: Path, files: Mapping[str, str], age: float) -> int:
    """Choose the last copy of each workspace's files. Returns the number of workspaces."""
    count = 0
    for workspace in directory.iterdir():
        try:
            record = json.loads((workspace / RECORD).read_bytes())
        except FileNotFoundError:  # it was removed when the backup was made
            shutil.rmtree(workspace)
            continue
        record["used_at"] += age
        (workspace / RECORD).write_text(json.dumps(record))
        for copy in workspace.glob(f"{FILES}-*"):
            if copy.name == files.get(workspace.name):
                copy.rename(workspace / FILES)
            else:
                shutil.rmtree(copy)
        count += 1
    return count


def _prepare_checkpoints(directory: Path, age: float) -> None:
    for description in directory.glob("*/*.json"):
        record = json.loads(description.read_bytes())
        record["until"] += age
        record["info"]["expires_at"] = datetime.fromtimestamp(
            round(record["until"], 3), UTC
        ).isoformat()
        description.write_text(json.dumps(record))


def _give_to_owner(staging: Path, data_dir: Path) -> None:
    """Give what root has made to the user of the broker. Files of code have their owners already."""
    if os.geteuid() != 0:
        return
    owner = data_dir.stat()
    for directory, folders, files in os.walk(staging):
        for name in [".", *files]:
            os.chown(Path(directory, name), owner.st_uid, owner.st_gid)
        folders[:] = [each for each in folders if each != FILES]


def _put_aside(place: Place, there: list[Path]) -> tuple[Path, ...]:
    """Rename what is there. Returns where it is now."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = []
    for path in there:
        target = path.with_name(f".{path.name.lstrip('.')}-replaced-{stamp}")
        path.rename(target)
        aside.append(target)
    links = Layout(place.data_dir).public
    if (
        there and links.is_dir()
    ):  # they lead to workspaces that are aside now; the broker makes new ones
        target = links.with_name(f".{links.name}-links-replaced-{stamp}")
        links.rename(target)
        aside.append(target)
    return tuple(aside)


def _put_in_place(place: Place, staging: Path) -> None:
    layout = Layout(place.data_dir)
    for name, target in ((WORKSPACES, layout.private), (CHECKPOINTS, place.checkpoints)):
        if target.is_dir():
            target.rmdir()  # it is empty
        (staging / name).rename(target)
    if place.state_dir is not None:
        place.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (staging / STATE).iterdir():
            shutil.move(each, place.state_dir / each.name)  # perhaps to another file system
