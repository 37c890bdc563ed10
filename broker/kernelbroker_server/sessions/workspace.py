"""All workspaces: had by one session at a time, kept for a while after it, and then removed.

A workspace is known by its tenant and its name. Its files are in the sandbox of the session that has
it, or on the disk (`backends/kept.py`), from where the next session of that tenant gets them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernelbroker.protocol.errors import Conflict, NotFound, Unavailable

from ..backends import kept as disk
from ..backends.base import Sandbox, SandboxEnd
from ..backends.directories import remove_tree
from ..backends.kept import Claimed, KeptWorkspace, Record
from ..backends.usage import Usage, measure

logger = logging.getLogger(__name__)

_REAP_S = 30.0
_END_S = 30.0
"""How long a sandbox may take to end before its files are taken for settled."""
_SCANS = 2
_NOBODY = ""
"""The tenant of what is on the disk for a while only."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Hold:
    """That a session has a workspace, until `free` is done."""

    workspace: Workspace
    session_id: str
    leaving: asyncio.Event
    free: asyncio.Future[None]


class Workspace:
    """One session's, from `Workspaces.claim` to `put_away`. `give` and `take` as often as needed.

    Attributes:
        before: what it held when the session got it.
        kept: what is on the disk; None for a workspace that nobody will ask for again, until it
            has to be kept between two sandboxes.
    """

    def __init__(
        self, owner: Workspaces, name: str, record: Record, kept: KeptWorkspace | None
    ) -> None:
        self.name = name
        self.before = Usage(record.size, record.files)
        self.record = record
        self.kept = kept
        self._owner = owner

    async def give(self, sandbox: Sandbox) -> None:
        """Move the files into a sandbox. Raises OSError."""
        kept = self.kept
        if kept is not None:
            await to_the_end(lambda: kept.give(sandbox.workspace))

    async def take(self, sandbox: Sandbox, *, mounts: bool) -> None:
        """Move the files out of a sandbox; `mounts` as in `KeptWorkspace.take`. Raises OSError."""
        if self.kept is None:
            self.kept = KeptWorkspace.claim(self._owner.directory, self.record)
        kept = self.kept
        await to_the_end(lambda: kept.take(sandbox.workspace, mounts=mounts))

    def put_away(self, ended: asyncio.Future[SandboxEnd] | None) -> None:
        """The session has ended, and its sandbox is about to; calling it twice does no harm."""
        self._owner.put_away(self, ended)


class Workspaces:
    """
    Args:
        directory: `Backend.kept`.
        retention: seconds that a workspace is kept after its session; 0 keeps none.
        max_size: bytes that all kept ones may take together, the oldest go first; 0 for no limit.
    """

    def __init__(self, directory: Path, *, retention: float = 86400.0, max_size: int = 0) -> None:
        self.directory = directory
        self.retention = retention
        self._max_size = max_size
        self._held: dict[tuple[str, str], _Hold] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._scans = asyncio.Semaphore(_SCANS)

    def start(self) -> None:
        self._reaper = asyncio.create_task(self._reap_always(), name="session workspace reaper")

    async def stop(self) -> None:
        """After all sessions have ended: wait until their files are put away."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait([self._reaper])
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def claim(
        self,
        tenant: str,
        session_id: str,
        *,
        name: str | None = None,
        retention: float | None = None,
        timeout: float,
    ) -> Workspace:
        """A workspace for a session; where no name is given, the session's id is the name.

        Args:
            retention: seconds to keep it afterwards, if less than the setting.
            timeout: seconds to wait for an earlier session that is ending.

        Raises:
            Conflict: another session has it.
            Unavailable: nothing can be written to the disk.
        """
        key = (tenant, name or session_id)
        record = Record(tenant=tenant, name=key[1], session_id=session_id, retention=retention)
        try:
            async with asyncio.timeout(timeout):
                while (hold := self._held.get(key)) is not None and (
                    hold.leaving.is_set() or hold.session_id == session_id
                ):
                    await asyncio.wait([hold.free])
        except TimeoutError:
            pass
        if hold is not None:
            raise _in_use(record.name, hold.session_id)
        kept = None
        if name is None and not self._kept_for(record):
            # What lies on the disk under this name is not this session's.
            record.tenant, record.name = _NOBODY, secrets.token_hex(12)
        else:
            try:
                kept = KeptWorkspace.claim(self.directory, record)
            except Claimed as exc:
                raise _in_use(record.name, exc.session_id) from None
            except OSError as exc:
                raise Unavailable(
                    f"the workspace cannot be opened: {exc.strerror}", retry_after=10
                ) from exc
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        workspace = Workspace(self, key[1], record, kept)
        self._held[key] = _Hold(workspace, session_id, asyncio.Event(), free)
        return workspace

    def put_away(self, workspace: Workspace, ended: asyncio.Future[SandboxEnd] | None) -> None:
        """See `Workspace.put_away`."""
        held = [(key, hold) for key, hold in self._held.items() if hold.workspace is workspace]
        if not held or held[0][1].leaving.is_set():
            return
        ((key, hold),) = held
        hold.leaving.set()
        task = asyncio.create_task(
            self._put_away(key, hold, workspace, ended), name=f"session workspace {workspace.name}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def measure(self, directory: Path, max_files: int) -> Usage:
        """How much a workspace holds; few are measured at once."""
        async with self._scans:
            return await asyncio.to_thread(measure, directory, max_files)

    async def list(self, tenant: str) -> list[Record]:
        """This tenant's workspaces, in use or not; the sizes of those in use are out of date."""
        records = await asyncio.to_thread(disk.records, self.directory)
        return [record for record in records if record.tenant == tenant]

    def expires_at(self, record: Record) -> float | None:
        """Seconds since the epoch; None while a session has it."""
        return None if record.session_id else record.used_at + self._kept_for(record)

    async def delete(self, tenant: str, name: str) -> None:
        """Remove a workspace.

        Raises:
            NotFound
            Conflict: a session has it.
        """
        hold = self._held.get((tenant, name))
        if hold is not None and hold.leaving.is_set():
            await asyncio.wait([hold.free], timeout=_END_S)
        try:
            kept = disk.claim_unused(self.directory, tenant, name)
        except Claimed as exc:
            raise _in_use(name, exc.session_id) from None
        if kept is None:
            raise NotFound(f"there is no workspace {name}")
        await self._remove(kept)

    async def _put_away(
        self,
        key: tuple[str, str],
        hold: _Hold,
        workspace: Workspace,
        ended: asyncio.Future[SandboxEnd] | None,
    ) -> None:
        kept = workspace.kept
        try:
            if kept is not None:
                if ended is not None:
                    await asyncio.wait([ended], timeout=_END_S)  # till then it may write
                if self._kept_for(kept.record) and await asyncio.to_thread(kept.has_files):
                    kept.put_back(await self.measure(kept.files, disk.MAX_COUNT))
                else:
                    await kept.remove()
        except OSError:
            logger.exception("a workspace could not be put away")
        finally:
            if kept is not None:
                kept.close()
            del self._held[key]
            hold.free.set_result(None)

    def _kept_for(self, record: Record) -> float:
        asked = self.retention if record.retention is None else record.retention
        return min(asked, self.retention)

    async def _reap_always(self) -> None:
        while True:
            try:
                await self._reap()
            except OSError:
                logger.exception("kept workspaces could not be reaped")
            await asyncio.sleep(_REAP_S)

    async def _reap(self) -> None:
        """Remove what has expired, then the oldest ones until the rest fits."""
        for path in await asyncio.to_thread(disk.remains, self.directory):
            await remove_tree(path)
        records = await asyncio.to_thread(disk.records, self.directory)
        ours = {hold.session_id for hold in self._held.values()}
        for record in records:
            if record.session_id and record.session_id not in ours:
                await asyncio.to_thread(disk.settle, self.directory, record)
        unused = [record for record in records if not record.session_id]
        total = sum(record.size for record in unused)
        for record in unused:
            too_much = bool(self._max_size) and total > self._max_size
            if too_much or record.used_at + self._kept_for(record) <= time.time():
                total -= record.size
                await self._reap_one(record)

    async def _reap_one(self, record: Record) -> None:
        try:
            kept = disk.claim_unused(self.directory, record.tenant, record.name)
        except Claimed:
            return
        if kept is None:
            return
        if kept.record == record:
            await self._remove(kept)
        else:  # it was used meanwhile
            kept.close()

    async def _remove(self, kept: KeptWorkspace) -> None:
        """To the end, whoever asked for it may go."""
        task = asyncio.create_task(kept.remove(), name="session workspace removal")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)


def _in_use(name: str, session_id: str) -> Conflict:
    if not session_id:
        return Conflict(f"workspace {name} is just being put away or removed; try again")
    return Conflict(
        f"workspace {name} is in use by session {session_id}; close that session, or choose another name"
    )


async def to_the_end(work: Callable[[], T]) -> T:
    """Do it in a thread. Who is cancelled meanwhile is so when it has been done."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()
