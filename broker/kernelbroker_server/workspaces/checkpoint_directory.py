"""Stores checkpoints in a directory of this machine.

Each tenant has a directory, whose name is a digest. A checkpoint is `<name>.json`, its description, and the
data file that the description names. The description is written last, so a checkpoint is whole or absent.
Data files without a description are removed after an hour. Everything that touches the disk runs in a
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.errors import NotFound, TooLarge, Unavailable
from kernelbroker.protocol.messages import CheckpointInfo

from ..cancellation import run_to_completion
from .checkpoint_store import CheckpointLimits, CheckpointStore

logger = logging.getLogger(__name__)

_CHUNK = 1024 * 1024
_ABANDONED_S = 3600.0
"""The age at which something is removed that a dead broker left."""
_MAX_DESCRIPTION = 16 * 1024**2


class _Record(msgspec.Struct, kw_only=True):
    """The content of a description. `data` is the name of the data file, `until` is when it expires."""

    data: str
    until: float
    info: CheckpointInfo


class DirectoryCheckpoints(CheckpointStore):
    """Stores checkpoints below a directory, which is made when it is needed.

    Attributes:
        problems: the descriptions that the last `reap` could not read. What belongs to them is kept.
    """

    def __init__(self, directory: Path, limits: CheckpointLimits | None = None) -> None:
        self.limits = limits or CheckpointLimits()
        self.problems: Sequence[str] = ()
        self._directory = directory
        self._writing: dict[str, int] = {}
        """Bytes that each tenant's running saves have written."""

    async def save(
        self,
        tenant: str,
        info: CheckpointInfo,
        data: AsyncIterable[bytes],
        retention: float | None = None,
    ) -> CheckpointInfo:
        others = [each for each in await self.list(tenant) if each.name != info.name]
        count = sum(not each.name.startswith(".") for each in others)
        if count >= self.limits.count and not info.name.startswith("."):
            raise TooLarge(f"you have {count} checkpoints, the most that you may have: delete one")
        used = sum(each.size for each in others)
        directory = self._of(tenant)
        path = directory / f"{secrets.token_hex(16)}.data"
        size = 0
        try:
            for each in (self._directory, directory):
                await asyncio.to_thread(each.mkdir, 0o700, parents=True, exist_ok=True)
            file = await asyncio.to_thread(path.open, "xb", buffering=0)
            try:
                async for chunk in data:
                    size += len(chunk)
                    self._writing[tenant] = self._writing.get(tenant, 0) + len(chunk)
                    self._expect_room(size, used + self._writing[tenant])
                    await asyncio.to_thread(_write_all, file.fileno(), chunk)
            finally:
                file.close()
            until = time.time() + (self.limits.retention if retention is None else retention)
            info = msgspec.structs.replace(info, size=size, expires_at=_utc(until))
            record = _Record(data=path.name, until=until, info=info)
            await run_to_completion(asyncio.to_thread(self._commit, directory, record))
        except OSError as exc:
            raise Unavailable(
                f"the checkpoint cannot be stored: {exc.strerror}", retry_after=10
            ) from exc
        finally:
            self._writing[tenant] = self._writing.get(tenant, 0) - size
            if self._writing[tenant] <= 0:
                del self._writing[tenant]
            # Does nothing to a checkpoint that was stored, whose description names the file.
            await run_to_completion(asyncio.to_thread(_remove_unless_named, directory, path, info))
        return info

    def _expect_room(self, size: int, total: int) -> None:
        if size > self.limits.size:
            raise TooLarge(
                f"a checkpoint has at most {self.limits.size:,} bytes: delete variables or files"
            )
        if total > self.limits.total_size:
            raise TooLarge(
                f"your checkpoints have at most {self.limits.total_size:,} bytes together: delete one"
            )

    def _commit(self, directory: Path, record: _Record) -> None:
        path = directory / f"{record.info.name}.json"
        earlier = _read(path)
        new = directory / f"{record.data}.new"
        new.write_bytes(msgspec.json.encode(record))
        new.replace(path)
        if earlier is not None:
            (directory / earlier.data).unlink(missing_ok=True)

    async def list(self, tenant: str) -> list[CheckpointInfo]:
        records = await asyncio.to_thread(lambda: list(_records(self._of(tenant))))
        return sorted((record.info for record in records), key=lambda info: info.created_at)

    async def get(self, tenant: str, name: str) -> CheckpointInfo:
        return (await self._record(tenant, name)).info

    @contextlib.asynccontextmanager
    async def open(self, tenant: str, name: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        record = await self._record(tenant, name)
        path = self._of(tenant) / record.data
        try:
            file = await asyncio.to_thread(path.open, "rb", buffering=0)
        except FileNotFoundError:
            raise NotFound(f"there is no checkpoint {name}") from None  # replaced or deleted now
        except OSError as exc:
            raise Unavailable(
                f"the checkpoint cannot be read: {exc.strerror}", retry_after=10
            ) from exc

        async def chunks() -> AsyncIterator[bytes]:
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk

        with file:
            yield os.fstat(file.fileno()).st_size, chunks()

    async def delete(self, tenant: str, name: str) -> None:
        record = await self._record(tenant, name)
        await run_to_completion(asyncio.to_thread(_remove, self._of(tenant), name, record))

    async def reap(self) -> None:
        """Remove what has expired, and what dead brokers left."""
        await asyncio.to_thread(self._reap)

    def _reap(self) -> None:
        now = time.time()
        problems = []
        with contextlib.suppress(FileNotFoundError):
            for directory in self._directory.iterdir():
                named = set()
                for record in _records(directory):
                    named.add(record.data)
                    if record.until <= now:
                        _remove(directory, record.info.name, record)
                if unread := unread_descriptions(directory):  # their data files have no name here
                    problems += [
                        f"{each}: cannot be read; the checkpoint is left out" for each in unread
                    ]
                    continue
                for path in directory.iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        old = path.stat().st_mtime < now - _ABANDONED_S
                        if old and path.suffix != ".json" and path.name not in named:
                            path.unlink()
        for each in problems:
            if each not in self.problems:
                logger.error("%s", each)
        self.problems = problems

    async def _record(self, tenant: str, name: str) -> _Record:
        path = self._of(tenant) / f"{name}.json"
        record = await asyncio.to_thread(_read, path)
        if record is None or record.until <= time.time():
            raise NotFound(f"there is no checkpoint {name}")
        return record

    def _of(self, tenant: str) -> Path:
        return self._directory / hashlib.sha256(tenant.encode()).hexdigest()[:32]


def unread_descriptions(directory: Path) -> list[Path]:
    """The descriptions of a tenant's checkpoints that are damaged or of a newer version. Raises OSError."""
    return [
        path for path in sorted(directory.glob("*.json")) if path.exists() and _read(path) is None
    ]


def _records(directory: Path) -> Iterator[_Record]:
    for path in directory.glob("*.json"):
        if (record := _read(path)) is not None:
            yield record


def _read(path: Path) -> _Record | None:
    """A description; None if there is none that this version can read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError), path.open("rb") as file:
        return decode_json(file.read(_MAX_DESCRIPTION), _Record)
    return None


def _remove(directory: Path, name: str, record: _Record) -> None:
    (directory / f"{name}.json").unlink(missing_ok=True)
    (directory / record.data).unlink(missing_ok=True)


def _remove_unless_named(directory: Path, path: Path, info: CheckpointInfo) -> None:
    record = _read(directory / f"{info.name}.json")
    if record is None or record.data != path.name:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _utc(timestamp: float) -> datetime:
    return datetime.fromtimestamp(round(timestamp, 3), UTC)
