"""One workspace in a bucket: its record, which is written by compare-and-set, and what never changes.

Below `<prefix>/<tenant>/<digest of the name>/`:

    record                  who has the workspace, until when, and which manifest is valid
    manifests/<sha256>      what the workspace has: see `snapshot.Manifest`
    pieces/<sha256>         the content of its files, at most 4 MiB each

A change is first uploaded under names that nobody knows, and then becomes valid with the record. A
broker that has lost the workspace fails at the record, and has changed nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.errors import Unavailable

from ..backends.directories import remove_tree
from ..cancellation import run_to_completion
from .bucket import Bucket
from .snapshot import Digest, Index, Manifest, Restoring, Scan

RECORD = "record"
_MANIFEST_BYTES = 256 * 1024**2
"""The bound of a manifest in memory."""


class CopyRecord(msgspec.Struct, kw_only=True):
    """The content of `record`, as JSON. Times are seconds since the epoch.

    Attributes:
        holder: the id of the store that may change the workspace; empty if there is none.
        token: unique for each holding.
        held_until: another store may take the workspace after that.
        session_id: the session that has it.
        manifest: the valid manifest; empty if nothing is saved yet.
        saved_at: when it was written.
        max_size, max_age, is_made, retention, size, files, used_at: see `layout.Record`.
    """

    tenant: str
    name: str
    holder: str = ""
    token: str = ""
    held_until: float = 0.0
    session_id: str = ""
    manifest: str = ""
    saved_at: float = 0.0
    used_at: float = 0.0
    retention: float | None = None
    size: int = 0
    files: int = 0
    max_size: int | None = None
    max_age: float | None = None
    is_made: bool = False


def prefix_of(tenant: str, name: str) -> str:
    return f"{tenant}/{hashlib.sha256(name.encode()).hexdigest()[:40]}/"


def decode_record(data: bytes) -> CopyRecord:
    """Raises Unavailable."""
    try:
        return decode_json(data, CopyRecord)
    except msgspec.MsgspecError as exc:
        raise Unavailable(f"the bucket has an invalid record: {exc}", retry_after=60) from exc


class WorkspaceCopy:
    """The manifests and pieces of one workspace. Only who holds it may call anything but `fetch`.

    Args:
        max_size, max_entries: what a workspace has more is not saved.
        places: bounds the pieces that all copies have in memory.
    """

    def __init__(
        self,
        bucket: Bucket,
        prefix: str,
        *,
        max_size: int,
        max_entries: int,
        places: asyncio.Semaphore,
    ) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._max_size, self._max_entries = max_size, max_entries
        self._places = places
        self._index: Index = {}
        self._stored: set[Digest] = set()
        self._loaded = ""
        self.left_out = 0

    async def fetch(self, manifest_name: str, target: Path) -> None:
        """Make a directory with the files of a manifest.

        Raises:
            Unavailable: something is missing or damaged.
            OSError: the disk is full.
        """
        manifest = await self._manifest(manifest_name)
        await remove_tree(target)
        restoring = Restoring(target, manifest)

        async def fetch_piece(number: int) -> None:
            entry, piece = wanted[number]
            async with self._places:
                found = await self._bucket.get(self._piece(entry.pieces[piece]))
                if found is None:
                    raise Unavailable(f"the bucket lacks a piece of {entry.path!r}", retry_after=60)
                await run_to_completion(asyncio.to_thread(restoring.write, entry, piece, found[0]))

        try:
            wanted = await run_to_completion(asyncio.to_thread(restoring.make))
            await _each(len(wanted), fetch_piece)
            await run_to_completion(asyncio.to_thread(restoring.finish))
        except ValueError as exc:
            raise Unavailable(f"the bucket has a damaged workspace: {exc}", retry_after=60) from exc

    async def upload(self, files: Path, manifest_name: str) -> str:
        """Upload what has changed since a manifest. Returns the name of the new one.

        Raises:
            Unavailable
        """
        if manifest_name != self._loaded:
            self._stored = (await self._manifest(manifest_name)).digests if manifest_name else set()
            self._loaded = manifest_name
        scan = Scan(
            files,
            self._index,
            set(self._stored),
            max_size=self._max_size,
            max_entries=self._max_entries,
        )
        batches = scan.batches()
        try:
            while True:
                async with self._places:  # a batch is about as large as a piece
                    batch = await run_to_completion(asyncio.to_thread(next, batches, None))
                    if batch is None:
                        break
                    await self._put(batch)
        finally:
            batches.close()
        manifest = scan.manifest()
        self._index, self.left_out = scan.index, scan.left_out
        encoded = await asyncio.to_thread(_packed, manifest)
        name = hashlib.sha256(encoded).hexdigest()
        if name != manifest_name:
            await self._bucket.put(self._manifest_key(name), encoded)
        return name

    async def _put(self, batch: dict[Digest, bytes]) -> None:
        pieces = list(batch.items())

        async def put(number: int) -> None:
            digest, data = pieces[number]
            await self._bucket.put(self._piece(digest), data)

        await _each(len(pieces), put)

    async def forget(self, earlier: str, valid: str) -> None:
        """Remove what belonged to an earlier manifest alone."""
        manifest = await self._manifest(valid)
        gone = [self._piece(each) for each in self._stored - manifest.digests]
        if earlier and earlier != valid:
            gone.append(self._manifest_key(earlier))
        self._stored, self._loaded = manifest.digests, valid
        await self._bucket.delete(gone)

    async def sweep(self, valid: str) -> None:
        """Remove all that the valid manifest does not name: a save that failed has uploaded it."""
        manifest = await self._manifest(valid)
        known = {f"{self._prefix}{RECORD}", self._manifest_key(valid)}
        known |= set(map(self._piece, manifest.digests))
        self._stored, self._loaded = manifest.digests, valid
        await self._bucket.delete(set(await self._bucket.keys(self._prefix)) - known)

    async def remove(self) -> None:
        """Remove everything; the record last, so that a removal that is cut off is repeated."""
        record = f"{self._prefix}{RECORD}"
        await self._bucket.delete(set(await self._bucket.keys(self._prefix)) - {record})
        await self._bucket.delete([record])

    async def _manifest(self, name: str) -> Manifest:
        found = await self._bucket.get(self._manifest_key(name))
        try:
            if found is None:
                raise ValueError("it is missing")
            return await asyncio.to_thread(_unpacked, found[0])
        except (ValueError, zlib.error, msgspec.MsgspecError) as exc:
            raise Unavailable(f"the bucket has no valid manifest: {exc}", retry_after=60) from exc

    def _manifest_key(self, name: str) -> str:
        return f"{self._prefix}manifests/{name}"

    def _piece(self, digest: Digest) -> str:
        return f"{self._prefix}pieces/{digest.hex()}"


def _packed(manifest: Manifest) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(manifest), 1)


def _unpacked(data: bytes) -> Manifest:
    unpacking = zlib.decompressobj()
    raw = unpacking.decompress(data, _MANIFEST_BYTES)
    if not unpacking.eof:
        raise ValueError("it is too large, or cut off")
    return msgspec.msgpack.decode(raw, type=Manifest)


async def _each(count: int, work: Callable[[int], Awaitable[None]], at_once: int = 16) -> None:
    """Do work for each number; the first error ends it."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await work(number)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, count)):
                group.create_task(some())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
