"""The files of workspaces that no session has, in a directory of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator

from kernelbroker.protocol.messages import FileList

from ..cancellation import run_to_completion
from . import file_content, file_tree
from .directory_plans import DirectoryPlan
from .disk_room import DiskRoom
from .file_content import OpenFile
from .file_paths import components, of_entry
from .quota import Quota
from .stored_files import Bounds, StoredFiles
from .visits import Visit, Visits


class DirectoryFiles(StoredFiles):
    """The files of the workspaces of a `DirectoryStore`."""

    def __init__(self, visits: Visits, room: DiskRoom) -> None:
        self._visits = visits
        self._room = room

    async def make(
        self, tenant: str, name: str, bounds: Bounds, plan: DirectoryPlan | None, quota: Quota
    ) -> bool:
        async with self._visits.visit(tenant, name, make=True) as visit:
            record = visit.directory.record
            is_new = not record.is_made
            record.is_made = visit.has_changed = True
            record.max_size, record.max_age = bounds.size, bounds.retention
            await run_to_completion(asyncio.to_thread(visit.directory.write))
            if plan is not None:
                await _follow(plan, visit, self._bounded(quota, visit))
        return is_new

    @contextlib.asynccontextmanager
    async def open(self, tenant: str, name: str, path: str) -> AsyncIterator[OpenFile]:
        of_entry(path)  # before it is asked whether there is a workspace
        async with self._visits.visit(tenant, name) as visit:
            root = visit.directory.files
            opening = asyncio.ensure_future(asyncio.to_thread(file_content.open_file, root, path))
            try:
                file = await run_to_completion(opening)
            except asyncio.CancelledError:
                if not opening.cancelled() and opening.exception() is None:
                    opening.result().close()
                raise
        try:
            yield file
        finally:
            file.close()

    async def write(
        self, tenant: str, name: str, path: str, data: AsyncIterable[bytes], quota: Quota
    ) -> None:
        of_entry(path)  # before a workspace is made
        async with self._visits.visit(tenant, name, make=True) as visit:
            await _write(visit, path, data, self._bounded(quota, visit))

    async def list(self, tenant: str, name: str, path: str, *, recursive: bool) -> FileList:
        components(path)
        async with self._visits.visit(tenant, name) as visit:
            root = visit.directory.files
            listing = asyncio.to_thread(file_tree.list_files, root, path, recursive=recursive)
            return await run_to_completion(listing)

    async def delete(self, tenant: str, name: str, path: str, *, recursive: bool) -> None:
        of_entry(path)
        async with self._visits.visit(tenant, name) as visit:
            visit.has_changed = True
            root = visit.directory.files
            deletion = asyncio.to_thread(file_tree.delete, root, path, recursive=recursive)
            await run_to_completion(deletion)

    def _bounded(self, quota: Quota, visit: Visit) -> Quota:
        quota = quota.lowered_to(visit.directory.record.max_size)
        return quota.held_at(visit.held) if self._room.is_short else quota


async def _write(
    visit: Visit, path: str, data: AsyncIterable[bytes], quota: Quota, *, replace: bool = True
) -> None:
    visit.has_changed = True
    size = files = 0

    async def reserve(more_size: int, more_files: int) -> None:
        nonlocal size, files
        visit.reserve(quota, more_size, more_files)
        size, files = size + more_size, files + more_files

    try:
        root = visit.directory.files
        await file_content.write(root, path, data, reserve, replace=replace)
    except BaseException:
        visit.give_back(size, files)
        raise


async def _follow(plan: DirectoryPlan, visit: Visit, quota: Quota) -> None:
    root = visit.directory.files
    for path in plan.directories:
        await asyncio.to_thread(file_content.make_directory, root, path)
    for path, text in plan.files.items():
        if not await asyncio.to_thread(file_content.exists, root, path):
            await _write(visit, path, _once(text.encode()), quota, replace=False)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
