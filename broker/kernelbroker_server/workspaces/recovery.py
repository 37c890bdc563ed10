"""Puts workspaces in order after a broker died or an older version made them. Everything here blocks."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from ..backends.usage import measure
from ..kept_aside import set_aside
from .layout import MAX_COUNT, RECORD, Claimed, Layout, Record, read_record, take_lock
from .workspace_directory import WorkspaceDirectory

log = logging.getLogger(__name__)


def put_back_abandoned(layout: Layout, record: Record) -> None:
    """Put back a workspace whose broker died, if the store has its files."""
    try:
        workspace = WorkspaceDirectory.claim_unused(layout, record.tenant, record.name)
    except Claimed:
        return
    if workspace is not None:
        record = workspace.record
        holder = layout.sandbox(record)
        if record.session_id and not (holder is not None and holder.exists()):
            workspace.put_back(measure(workspace.files, MAX_COUNT))
        workspace.close()


def mend_records(layout: Layout) -> list[str]:
    """Make new records in place of those that cannot be read, from the public links.

    Returns what cannot be mended, and stays as it is.
    """
    damaged = damaged_records(layout)
    links = layout.links() if damaged else {}
    problems = []
    for directory in damaged:
        if (link := links.get(directory.name)) is None:
            problems.append(f"{directory}: its {RECORD} cannot be read, and no link names it")
            continue
        try:
            _mend(layout, directory, *link)
        except OSError as exc:
            problems.append(f"{directory}: its {RECORD} cannot be made again: {exc.strerror}")
    return problems


def _mend(layout: Layout, directory: Path, tenant: str, name: str, files: Path) -> None:
    """Make a new record, unless a session has the workspace and will write one. Raises OSError."""
    try:
        lock = take_lock(directory, os.O_CREAT)
    except Claimed:
        return
    if lock is None:
        return
    record = Record(tenant=tenant, name=name, is_made=True)
    if (files.parent.parent.name, files.name) == ("sandboxes", "workspace"):
        data_dir = layout.data_dir.resolve()
        is_below = files.is_relative_to(data_dir)
        record.sandbox = str(files.relative_to(data_dir) if is_below else files)
    workspace = WorkspaceDirectory(layout, directory, lock, record)
    try:
        if _is_damaged(directory):
            reason = f"the workspace {name} of {tenant} has a new one"
            aside = set_aside(directory / RECORD, "damaged", reason)
            try:
                workspace.write()
            except OSError:
                aside.rename(directory / RECORD)  # for the next attempt
                raise
    finally:
        workspace.close()


def damaged_records(layout: Layout) -> list[Path]:
    """The directories of workspaces whose records are damaged or of a newer version."""
    return [each for each in layout.directories() if _is_damaged(each)]


def _is_damaged(directory: Path) -> bool:
    return (directory / RECORD).exists() and read_record(directory) is None


def rescue(layout: Layout, dead: Path) -> bool:
    """Take back the files of a dead broker's sandboxes, which have all ended.

    Args:
        dead: the directory of the broker, below the `data_dir` of one of its backends.

    Returns whether this succeeded. If not, the directories of the dead broker must not be removed.
    """
    well = True
    mend_records(layout)
    if (unread := damaged_records(layout)) and not layout.links().keys().isdisjoint(
        each.name for each in unread
    ):
        log.error("Records of workspaces cannot be mended, so %s is kept", dead)
        well = False
    for directory in layout.directories():
        record = read_record(directory)
        if record is None or not (record.session_id or record.sandbox):
            continue
        holder = layout.sandbox(record)
        if holder is not None and not holder.is_relative_to(dead):
            continue  # of another broker, dead or alive
        try:
            lock = take_lock(directory, 0)
        except (Claimed, OSError):  # in use
            continue
        if lock is None:
            continue
        workspace = WorkspaceDirectory(layout, directory, lock, record)
        try:
            if holder is not None:
                workspace.take(holder, mounts=True)
            workspace.put_back(measure(workspace.files, MAX_COUNT))
        except OSError:
            log.exception("The files of a dead broker's session could not be kept")
            well = False
        finally:
            workspace.close()  # so that a later broker, or this one, can try again
    return well


def publish_all(layout: Layout, records: list[Record]) -> None:
    """Make the public paths of workspaces that an older version of the broker left without them."""
    for record in records:
        link = layout.link(record)
        if record.session_id or link is None or os.path.lexists(link):
            continue
        with contextlib.suppress(Claimed, OSError):
            workspace = WorkspaceDirectory.claim_unused(layout, record.tenant, record.name)
            if workspace is not None:
                try:
                    workspace.publish()
                finally:
                    workspace.close()
