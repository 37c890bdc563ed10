"""Workspaces in a bucket of S3: they outlive the machine, and any broker with the bucket can use them.

A broker holds a workspace by its record in the bucket (`s3_copy.py`), and renews that with each save.
If it stops doing so, another broker takes the workspace over after a while, and tells its user what was
not saved.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelbroker.protocol.errors import Unavailable

from ..backends.base import Usage
from ..backends.directories import remove_tree
from ..cancellation import run_to_completion
from .bucket import Bucket, BucketOptions
from .layout import Claimed, Record
from .replica import Holding, Replica
from .s3_copy import RECORD, CopyRecord, WorkspaceCopy, decode_record, prefix_of
from .s3_holding import S3Holding
from .store import StoredWorkspace
from .workspace_directory import WorkspaceDirectory

logger = logging.getLogger(__name__)

_REAP_S = 3600.0
_AT_ONCE = 4
"""Pieces that are in memory at the same time, besides those of requests."""


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How often and how much is saved.

    Attributes:
        interval: seconds between two saves of a session that runs.
        hold: seconds after which another broker may take a workspace whose broker does not answer.
        retention: seconds to keep a workspace after its last use.
        max_size, max_entries: bounds of one workspace.
    """

    interval: float = 30.0
    hold: float = 120.0
    retention: float = 86400.0
    max_size: int = 4 * 1024**3
    max_entries: int = 200_000


class S3Replica(Replica):
    """The copies in one bucket.

    Args:
        store_id: of the directory of workspaces, whose brokers lock workspaces among themselves.
    """

    def __init__(
        self, bucket: BucketOptions, options: SaveOptions, store_id: Callable[[], str]
    ) -> None:
        self._bucket = Bucket(bucket)
        self._options = options
        self._store_id = store_id
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._reap_at = 0.0

    async def hold(self, directory: WorkspaceDirectory, *, is_attached: bool = False) -> Holding:
        local = directory.record
        prefix = prefix_of(local.tenant, local.name)
        found = await self._bucket.get(prefix + RECORD)
        record = CopyRecord(tenant=local.tenant, name=local.name)
        if found is not None:
            record = decode_record(found[0])
        own = await asyncio.to_thread(self._store_id)
        is_abandoned = bool(record.holder) and record.holder != own
        if is_abandoned and record.held_until > time.time():
            raise Claimed(record.session_id)
        is_current = local.base == record.manifest or is_attached
        warning = _warning(record, local, is_abandoned=is_abandoned, is_current=is_current)
        copy = WorkspaceCopy(
            self._bucket,
            prefix,
            max_size=self._options.max_size,
            max_entries=self._options.max_entries,
            places=self._places,
        )
        interval, hold = self._options.interval, self._options.hold
        holding = S3Holding(self._bucket, copy, record, local, own, interval, hold)
        holding.lost = warning
        holding.has_garbage = bool(record.holder)
        await holding.begin(None if found is None else found[1])
        try:
            if not is_current:
                await self._bring(directory, copy, record)
            local.base, local.is_saved = record.manifest, False
            await run_to_completion(asyncio.to_thread(directory.write))
        except BaseException as exc:
            await run_to_completion(holding.give_back())
            if isinstance(exc, OSError):
                raise Unavailable(
                    f"the files of the workspace cannot be stored: {exc.strerror}", retry_after=10
                ) from exc
            raise
        return holding

    async def _bring(
        self, directory: WorkspaceDirectory, copy: WorkspaceCopy, record: CopyRecord
    ) -> None:
        """Replace the files in the directory by those of the bucket."""
        new = directory.new_files
        if record.manifest:
            await copy.fetch(record.manifest, new)
        else:  # it was deleted
            await remove_tree(new)
            await asyncio.to_thread(new.mkdir, 0o700)
        await run_to_completion(asyncio.to_thread(directory.replace_files, new))
        local = directory.record
        local.size, local.files = record.size, record.files
        local.max_size, local.max_age, local.is_made = (
            record.max_size,
            record.max_age,
            record.is_made,
        )

    async def has(self, tenant: str, name: str) -> bool:
        found = await self._bucket.get(prefix_of(tenant, name) + RECORD)
        return found is not None and bool(decode_record(found[0]).manifest)

    async def list(self, tenant: str) -> list[StoredWorkspace]:
        records = await self._records(f"{tenant}/")
        return [
            StoredWorkspace(
                tenant=tenant,
                name=record.name,
                session_id=record.session_id or None,
                usage=Usage(record.size, record.files),
                used_at=record.used_at,
                expires_at=None if record.session_id else self._expires_at(record),
            )
            for _, record in sorted(records, key=lambda each: each[1].used_at)
            if record.manifest or record.session_id
        ]

    async def reap(self) -> None:
        if self._reap_at > time.monotonic():
            return
        self._reap_at = time.monotonic() + _REAP_S * random.uniform(0.5, 1.5)  # brokers take turns
        try:
            for tenant in await self._bucket.folders(""):
                for prefix, record in await self._records(f"{tenant}/"):
                    is_held = bool(record.holder) and record.held_until > time.time()
                    if not is_held and self._expires_at(record) <= time.time():
                        await self._reap_one(prefix)
        except Unavailable as exc:
            logger.warning("expired workspaces cannot be removed from the bucket: %s", exc)

    async def _reap_one(self, prefix: str) -> None:
        found = await self._bucket.get(prefix + RECORD)
        if found is None:
            return
        record = decode_record(found[0])
        local = Record(tenant=record.tenant, name=record.name)
        if self._expires_at(record) > time.time():
            return
        copy = WorkspaceCopy(self._bucket, prefix, max_size=0, max_entries=0, places=self._places)
        own = await asyncio.to_thread(self._store_id)
        holding = S3Holding(self._bucket, copy, record, local, own, 0.0, self._options.hold)
        try:
            await holding.begin(found[1])
        except Claimed:
            return
        await holding.remove()

    def _expires_at(self, record: CopyRecord) -> float:
        bounds = (self._options.retention, record.retention, record.max_age)
        return record.used_at + min(each for each in bounds if each is not None)

    async def _records(self, tenant_prefix: str) -> Sequence[tuple[str, CopyRecord]]:
        prefixes = [f"{each.rstrip('/')}/" for each in await self._bucket.folders(tenant_prefix)]
        found = await asyncio.gather(*(self._bucket.get(each + RECORD) for each in prefixes))
        return [
            (prefix, decode_record(each[0]))
            for prefix, each in zip(prefixes, found, strict=True)
            if each is not None
        ]


def _warning(
    record: CopyRecord, local: Record, *, is_abandoned: bool, is_current: bool
) -> str | None:
    """What the user of a workspace should know about its files."""
    saved = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record.saved_at))
    if is_abandoned:
        session = f" of session {record.session_id}" if record.session_id else ""
        if not record.manifest:
            return f"the machine{session} was lost before any file was saved"
        return (
            f"the machine{session} was lost; the files are those that were saved at {saved}, and what was "
            "changed later is lost"
        )
    if not is_current and local.base and not local.is_saved:
        return (
            f"the files are those that were saved at {saved} on another machine; what an earlier session "
            "left unsaved on this one is lost"
        )
    return None
