"""Stores workspaces in a directory of this machine, beside the directories of the sandboxes.

A workspace's files are moved by renaming: into the sandbox of the session that has it, and back.
`layout.py` describes what lies where on the disk. Everything that touches the disk runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelbroker.protocol.errors import Conflict, NotFound, Unavailable

from ..backends.base import Sandbox, Usage
from ..backends.directories import remove_tree
from ..backends.usage import UsageMeter
from ..cancellation import run_to_completion
from ..supervisor import SupervisedTask, Supervisor
from . import recovery
from .checkpoint_directory import DirectoryCheckpoints
from .checkpoint_store import CheckpointLimits
from .claimed_workspace import DirectoryWorkspace
from .claims import Claim, Claims, Key
from .directory_files import DirectoryFiles
from .disk_room import DiskRoom
from .layout import MAX_COUNT, NO_TENANT, Claimed, Layout, Record, in_use
from .replica import Holding, Replica
from .store import StoredWorkspace, Workspace, WorkspaceStore
from .visits import Visits
from .workspace_directory import WorkspaceDirectory

logger = logging.getLogger(__name__)

CHECKPOINTS = ".checkpoints"
_REAP_S = 30.0
_ENDING_S, _LOOK_S = 2.0, 0.05
"""How long another broker may need to put a workspace away whose session has ended."""
_RELEASE_S = 30.0
"""Timeout for a workspace whose session is ending."""


class DirectoryStore(WorkspaceStore):
    """Stores workspaces below `BackendSet.data_dir`.

    Args:
        retention: seconds to keep a workspace after its session; 0 keeps none.
        max_size: bytes that all kept workspaces may use together. The least recently used ones are removed
            first. 0 means no limit.
        limits: the bounds of each tenant's checkpoints.
        replica: makes what copies all workspaces to another place; the directory is then a cache.
    """

    checkpoints: DirectoryCheckpoints
    files: DirectoryFiles

    def __init__(
        self,
        data_dir: Path,
        *,
        retention: float = 86400.0,
        max_size: int = 0,
        limits: CheckpointLimits | None = None,
        kept_free: int = 0,
        replica: Callable[[Layout], Replica] | None = None,
    ) -> None:
        self.checkpoints = DirectoryCheckpoints(data_dir / CHECKPOINTS, limits)
        self.room = DiskRoom(data_dir, kept_free)
        self.layout = Layout(data_dir)
        self.retention = retention
        self._max_size = max_size
        self._claims = Claims()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaper: SupervisedTask | None = None
        self._watching: SupervisedTask | None = None
        self._meter = UsageMeter()
        self._replica = None if replica is None else replica(self.layout)
        self._holdings: dict[Key, Holding] = {}
        self._problems: list[str] = []
        has = None if self._replica is None else self._replica.has
        self.files = DirectoryFiles(
            Visits(self.layout, self._claims, self.put_away, self._hold, has), self.room
        )

    def start(self, supervisor: Supervisor) -> None:
        self._watching = supervisor.start("room on the disk", self.room.run)
        self._reaper = supervisor.start("workspace reaper", self._keep_reaping)

    async def stop(self) -> None:
        for task in (self._reaper, self._watching):
            if task is not None:
                await task.stop()
        await asyncio.to_thread(self.room.give_up)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def problems(self) -> Sequence[str]:
        return [*self._problems, *self.checkpoints.problems]

    def rescue(self, dead: Path) -> bool:
        """Take back the files of a dead broker's sandboxes; see `Backend.start`."""
        return recovery.rescue(self.layout, dead)

    async def claim(
        self,
        tenant: str,
        session_id: str,
        *,
        name: str | None = None,
        retention: float | None = None,
        timeout: float,
        sandbox: Sandbox | None = None,
    ) -> Workspace:
        key = (tenant, name or session_id)
        record = Record(tenant=tenant, name=key[1], session_id=session_id, retention=retention)
        claim = await self._claims.enter(key, session_id, timeout)
        if name is None and not self._retention_of(record):
            # Stored files with this name belong to an earlier session, so use another name.
            record.tenant, record.name = NO_TENANT, secrets.token_hex(12)
            return DirectoryWorkspace(self.layout, claim, record, None, self.release)
        claiming = asyncio.ensure_future(
            asyncio.to_thread(
                _claimed,
                self.layout,
                record,
                None if sandbox is None else sandbox.workspace,
                min(timeout, _ENDING_S),
            )
        )
        try:
            directory = await run_to_completion(claiming)
            holding = await self._hold(claim, directory, is_attached=record.sandbox is not None)
        except BaseException as exc:
            done = not claiming.cancelled() and claiming.exception() is None
            if self._replica is not None:
                record.retention = None  # what is here unsaved does not end with this session
            self.release(claim, claiming.result() if done else None)
            if isinstance(exc, Claimed):
                raise in_use(record.name, exc.session_id) from None
            if isinstance(exc, OSError):
                raise Unavailable(
                    f"the workspace cannot be opened: {exc.strerror}", retry_after=10
                ) from exc
            raise
        if holding is not None and sandbox is not None and record.sandbox is not None:
            holding.keep_saving(sandbox.workspace)
        return DirectoryWorkspace(self.layout, claim, record, directory, self.release, holding)

    async def _hold(
        self, claim: Claim, directory: WorkspaceDirectory, *, is_attached: bool = False
    ) -> Holding | None:
        """Bring the files up to date, if there is a replica. Raises Claimed, Unavailable."""
        if self._replica is None:
            return None
        holding = await self._replica.hold(directory, is_attached=is_attached)
        self._holdings[claim.key] = holding
        return holding

    def release(self, claim: Claim, directory: WorkspaceDirectory | None) -> None:
        """See `Workspace.release`."""
        if not claim.released:
            claim.leaving = claim.released = True
            self.put_away(claim, directory)

    def put_away(
        self, claim: Claim, directory: WorkspaceDirectory | None, *, has_changed: bool = True
    ) -> None:
        """Put a workspace away in the background, then free its claim."""
        name = f"workspace {claim.key[1]} is put away"
        work = self._put_away(claim, directory, has_changed=has_changed)
        self._own(asyncio.create_task(work, name=name))

    async def _put_away(
        self, claim: Claim, directory: WorkspaceDirectory | None, *, has_changed: bool
    ) -> None:
        holding = self._holdings.pop(claim.key, None)
        try:
            if directory is not None:
                record = directory.record
                kept = self._retention_of(record)
                if not has_changed:
                    if holding is not None:
                        record.is_saved = True
                        await asyncio.to_thread(directory.write)
                        await holding.give_back()
                elif kept and (record.is_made or await asyncio.to_thread(directory.has_files)):
                    usage = await self._meter.measure(directory.files, MAX_COUNT)
                    if holding is not None:
                        record.is_saved = await holding.finish(directory.files, usage)
                    await asyncio.to_thread(directory.put_back, usage)
                else:
                    if holding is not None:
                        await holding.remove()
                    await self._remove(directory)
        except OSError:
            logger.exception("a workspace could not be put away")
        finally:
            if directory is not None:
                directory.close()
            self._claims.remove(claim)

    # Workspaces that no session has.

    async def list(self, tenant: str) -> list[StoredWorkspace]:
        records = await asyncio.to_thread(self.layout.records)
        elsewhere: list[StoredWorkspace] = []
        if self._replica is not None:
            elsewhere = await self._replica.list(tenant)
            known = {each.name for each in elsewhere}
            records = [each for each in records if each.name not in known and not each.is_saved]
        return elsewhere + [
            StoredWorkspace(
                tenant=tenant,
                name=record.name,
                session_id=record.session_id or None,
                usage=Usage(record.size, record.files),
                used_at=record.used_at,
                expires_at=None if record.session_id else self._expires_at(record),
            )
            for record in records
            if record.tenant == tenant
        ]

    async def delete(self, tenant: str, name: str) -> None:
        removal = asyncio.ensure_future(self._delete(tenant, name))
        self._own(removal)
        await asyncio.shield(removal)

    async def _delete(self, tenant: str, name: str) -> None:
        try:
            directory = await self._claim_unused(tenant, name)
        except NotFound:
            if self._replica is None or not await self._replica.has(tenant, name):
                raise
            record = Record(tenant=tenant, name=name)
            directory = await asyncio.to_thread(WorkspaceDirectory.claim, self.layout, record)
        try:
            if self._replica is not None:
                await (await self._replica.hold(directory, is_attached=True)).remove()
        except BaseException as exc:
            if bool(directory.record.base) or await asyncio.to_thread(directory.has_files):
                directory.close()
            else:  # it was made for that
                await self._remove(directory)
            if isinstance(exc, Claimed):
                raise in_use(name, exc.session_id) from None
            raise
        await self._remove(directory)

    def host_path(self, tenant: str, name: str) -> Path | None:
        return self.layout.link(Record(tenant=tenant, name=name))

    async def _claim_unused(self, tenant: str, name: str) -> WorkspaceDirectory:
        claim = self._claims.get((tenant, name))
        if claim is not None and claim.leaving:
            await asyncio.wait([claim.free], timeout=_RELEASE_S)
        try:
            directory = await asyncio.to_thread(
                WorkspaceDirectory.claim_unused, self.layout, tenant, name
            )
        except Claimed as exc:
            raise in_use(name, exc.session_id) from None
        if directory is None:
            raise NotFound(f"there is no workspace {name}")
        return directory

    # Expiry.

    def _retention_of(self, record: Record) -> float:
        asked = self.retention if record.retention is None else record.retention
        own = self.retention if record.max_age is None else record.max_age
        return min(asked, own, self.retention)

    def _expires_at(self, record: Record) -> float:
        return record.used_at + self._retention_of(record)

    async def _keep_reaping(self) -> None:
        while True:
            await self._reap()
            await asyncio.sleep(_REAP_S)

    async def _reap(self) -> None:
        """Remove expired workspaces, then the least recently used ones until the rest fits."""
        await self.checkpoints.reap()
        if self._replica is not None:
            await self._replica.reap()
        for path in await asyncio.to_thread(self.layout.remains):
            await remove_tree(path)
        self._problems = await asyncio.to_thread(recovery.mend_records, self.layout)
        records = await asyncio.to_thread(self.layout.records)
        await asyncio.to_thread(recovery.publish_all, self.layout, records)
        ours = {claim.session_id for claim in self._claims.values()}
        for record in records:
            if record.session_id and record.session_id not in ours:
                await self._put_back_abandoned(record)
        unused = [record for record in records if not record.session_id]
        if self._replica is not None:
            for record in unused:
                if not record.is_saved and record.sandbox is None and record.tenant != NO_TENANT:
                    await self._save_unsaved(record)
            unused = [record for record in unused if record.is_saved]
        total = sum(record.size for record in unused)
        for record in unused:
            too_much = bool(self._max_size) and total > self._max_size
            if too_much or self._expires_at(record) <= time.time():
                total -= record.size
                await self._reap_one(record)

    async def _put_back_abandoned(self, record: Record) -> None:
        """Put back a workspace of a dead broker. A session that opens it meanwhile waits."""
        key = (record.tenant, record.name)
        if key not in self._claims:
            claim = self._claims.add(key, record.session_id)
            claim.leaving = True
            try:
                await run_to_completion(
                    asyncio.to_thread(recovery.put_back_abandoned, self.layout, record)
                )
            finally:
                self._claims.remove(claim)

    async def _save_unsaved(self, record: Record) -> None:
        """Save what could not be saved when its session ended, or when its broker died."""
        key = (record.tenant, record.name)
        if key in self._claims:
            return
        claim = self._claims.add(key, "")
        claim.leaving = True
        directory = None
        try:
            directory = await run_to_completion(
                asyncio.to_thread(WorkspaceDirectory.claim_unused, self.layout, *key)
            )
            if directory is not None and (directory.record.session_id or directory.record.sandbox):
                directory.close()  # a session has had it meanwhile
                directory = None
            if directory is not None:
                await self._hold(claim, directory)
        except (Claimed, Unavailable) as exc:
            logger.warning("workspace %s cannot be saved yet: %s", record.name, exc)
            if directory is not None:
                directory.close()
            directory = None
        finally:
            self.put_away(claim, directory)

    async def _reap_one(self, record: Record) -> None:
        with contextlib.suppress(Conflict, NotFound):
            directory = await self._claim_unused(record.tenant, record.name)
            if directory.record == record:
                await self._remove(directory)
            else:  # it was used meanwhile
                directory.close()

    async def _remove(self, directory: WorkspaceDirectory) -> None:
        gone = await asyncio.to_thread(directory.withdraw)
        if gone is not None:
            await remove_tree(gone)

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _claimed(
    layout: Layout, record: Record, workspace: Path | None, patience: float
) -> WorkspaceDirectory:
    """Claim a workspace. On a full disk wait for the broker's reserve.

    Raises:
        Claimed: another broker has it for longer than `patience`.
        OSError: it cannot be made.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return WorkspaceDirectory.claim(layout, record, workspace)
        except (Claimed, OSError) as exc:
            is_full = isinstance(exc, OSError) and exc.errno == errno.ENOSPC
            if time.monotonic() >= end or not (is_full or isinstance(exc, Claimed)):
                raise
        time.sleep(_LOOK_S)
