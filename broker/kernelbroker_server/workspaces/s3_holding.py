"""A broker's right to change one workspace in a bucket. Each save renews it, the last one ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from pathlib import Path

import msgspec
from kernelbroker.protocol.errors import Unavailable

from ..backends.base import Usage
from .bucket import Bucket, Changed
from .layout import Claimed, Record
from .replica import Holding
from .s3_copy import RECORD, CopyRecord, WorkspaceCopy, decode_record, prefix_of

logger = logging.getLogger(__name__)


class S3Holding(Holding):
    """Call `begin` first.

    Attributes:
        lost: what was not saved before.
        has_garbage: something may have been uploaded that no record names.
    """

    def __init__(
        self,
        bucket: Bucket,
        copy: WorkspaceCopy,
        record: CopyRecord,
        local: Record,
        store_id: str,
        interval: float,
        hold: float,
    ) -> None:
        self.lost: str | None = None
        self.has_garbage = False
        self._bucket, self._copy, self._record, self._local = bucket, copy, record, local
        self._store_id, self._token = store_id, secrets.token_hex(8)
        self._interval, self._hold = interval, hold
        self._key = prefix_of(record.tenant, record.name) + RECORD
        self._version: str | None = None
        self._saving: asyncio.Task[None] | None = None
        self._failing: str | None = None
        self._is_fenced = False

    @property
    def warning(self) -> str | None:
        left_out = self._copy.left_out and (
            f"{self._copy.left_out} files are not saved: they cannot be read, "
            "or are more than a workspace may have"
        )
        return "; ".join(each for each in (self.lost, self._failing, left_out) if each) or None

    async def begin(self, version: str | None) -> None:
        """Write into the record who has the workspace now.

        Args:
            version: of the record, as it was read.

        Raises:
            Claimed: somebody else was faster.
            Unavailable
        """
        self._version = version
        self._record.session_id = self._local.session_id
        self._record.used_at = time.time()
        try:
            await self._write()
        except Changed:
            raise Claimed("") from None

    def keep_saving(self, files: Path) -> None:
        assert self._saving is None
        self._saving = asyncio.create_task(
            self._keep_saving(files), name=f"workspace {self._record.name} is saved"
        )

    async def pause(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.cancel()
            await asyncio.wait([saving])

    async def finish(self, files: Path, usage: Usage) -> bool:
        await self.pause()
        local, record = self._local, self._record
        record.retention, record.max_size, record.max_age = (
            local.retention,
            local.max_size,
            local.max_age,
        )
        record.is_made = local.is_made
        record.size, record.files = usage.size, usage.files
        try:
            # A workspace that was never given a file has no directory. While it runs, that is an error.
            await asyncio.to_thread(files.mkdir, 0o700, exist_ok=True)
            await self._save(files, is_last=True)
        except (Unavailable, Changed, OSError) as exc:
            logger.warning("workspace %s is not saved: %s", record.name, exc)
            return False
        return True

    async def give_back(self) -> None:
        await self.pause()
        self._record.session_id = ""
        try:
            await self._write(is_last=True)
        except (Unavailable, Changed) as exc:  # it ends by itself after a while
            logger.warning("workspace %s cannot be given back: %s", self._record.name, exc)

    async def remove(self) -> None:
        await self.pause()
        try:
            await self._write()  # it is still ours
            await self._copy.remove()
        except (Unavailable, Changed) as exc:
            logger.warning("workspace %s cannot be removed: %s", self._record.name, exc)

    def leave(self) -> None:
        if self._saving is not None:
            self._saving.cancel()

    async def _keep_saving(self, files: Path) -> None:
        while not self._is_fenced:
            await asyncio.sleep(self._interval)
            try:
                await self._save(files)
                self._failing = None
            except Changed:
                self._is_fenced = True
                self._failing = "another broker has taken the workspace over; nothing more is saved"
                logger.warning("workspace %s was taken over by another broker", self._record.name)
            except (Unavailable, OSError) as exc:
                if self._failing is None:
                    logger.warning("workspace %s cannot be saved: %s", self._record.name, exc)
                moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._record.saved_at))
                since = f"since {moment}" if self._record.saved_at else "yet"
                self._failing = f"the files could not be saved {since}; the broker tries again"

    async def _save(self, files: Path, *, is_last: bool = False) -> None:
        """Upload what has changed, and make it valid. Raises Unavailable, Changed."""
        if self._is_fenced:
            raise Changed(self._key)
        record = self._record
        earlier, was_saved_at = record.manifest, record.saved_at
        had_garbage, self.has_garbage = self.has_garbage, True  # until this has succeeded
        name = await self._copy.upload(files, earlier)
        record.manifest, record.saved_at, record.used_at = name, time.time(), time.time()
        try:
            await self._write()
        except BaseException:
            record.manifest, record.saved_at = earlier, was_saved_at
            raise
        self._local.base = name
        with contextlib.suppress(Unavailable):  # the next save removes it
            if had_garbage:
                await self._copy.sweep(name)
            elif name != earlier:
                await self._copy.forget(earlier, name)
            self.has_garbage = False
        if is_last:
            record.session_id = ""
            with contextlib.suppress(Unavailable):  # it ends by itself after a while
                await self._write(is_last=True)

    async def _write(self, *, is_last: bool = False) -> None:
        """Write the record if it is still ours. Raises Changed, Unavailable."""
        record = self._record
        record.holder = "" if is_last else self._store_id
        record.token = self._token
        record.held_until = 0.0 if is_last else time.time() + self._hold
        data = msgspec.json.encode(record)
        try:
            self._version = await self._bucket.replace(self._key, data, self._version)
        except Changed:
            # A repeated request finds what the first one has written, although its answer was lost.
            found = await self._bucket.get(self._key)
            if found is None or decode_record(found[0]).token != self._token:
                raise
            self._version = await self._bucket.replace(self._key, data, found[1])
