"""The use of a workspace that no session has, by any number of requests at once.

The first request locks the workspace, and the last one unlocks it. A session that claims it meanwhile waits
for them, and later requests wait for the session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from kernelbroker.protocol.errors import NotFound, TooLarge, Unavailable

from ..backends.base import Usage
from ..cancellation import run_to_completion
from .claims import Claim, Claims, Key
from .layout import Claimed, Layout, Record, in_use, read_record
from .quota import Quota
from .workspace_directory import WorkspaceDirectory

_WAIT_S = 30.0
"""How long a request waits for a session that is ending."""


@dataclass(eq=False, slots=True)
class Visit:
    """A workspace that is in use by requests.

    Attributes:
        makes: the workspace is made if there is none.
        visitors: the requests that use it.
        held: the usage, with what the requests write.
        has_changed: a request has written or deleted something.
    """

    claim: Claim
    opening: asyncio.Future[WorkspaceDirectory]
    makes: bool
    visitors: int = 1
    held: Usage = field(default_factory=Usage)
    has_changed: bool = False

    @property
    def directory(self) -> WorkspaceDirectory:
        return self.opening.result()

    def can_serve(self, *, make: bool) -> bool:
        """Whether another request can share it."""
        opened = self.opening.done() and self.opening.exception() is None
        return self.makes or not make or opened

    def reserve(self, quota: Quota, size: int, files: int) -> None:
        """Count what is written next. Raises TooLarge."""
        more = Usage(size, files)
        if (refusal := quota.refusal(self.held, more)) is not None:
            raise TooLarge(refusal)
        self.held = Usage(self.held.size + size, self.held.files + files)

    def give_back(self, size: int, files: int) -> None:
        """Take back what was reserved, and not written in the end."""
        self.held = Usage(self.held.size - size, self.held.files - files)


class PutAway(Protocol):
    """See `DirectoryStore.put_away`."""

    def __call__(
        self, claim: Claim, directory: WorkspaceDirectory | None, /, *, has_changed: bool = True
    ) -> None: ...


class Visits:
    """The visits of one store.

    Args:
        put_away: puts a workspace away, and frees its claim.
        hold: brings a locked workspace up to date, if there is a replica.
        has: whether the replica has a workspace.
    """

    def __init__(
        self,
        layout: Layout,
        claims: Claims,
        put_away: PutAway,
        hold: Callable[[Claim, WorkspaceDirectory], Awaitable[object]] | None = None,
        has: Callable[[str, str], Awaitable[bool]] | None = None,
    ) -> None:
        self._layout = layout
        self._claims = claims
        self._put_away = put_away
        self._hold = hold
        self._has = has
        self._visits: dict[Key, Visit] = {}

    @contextlib.asynccontextmanager
    async def visit(self, tenant: str, name: str, *, make: bool = False) -> AsyncIterator[Visit]:
        """Use a workspace for a request.

        Args:
            make: make it if there is none.

        Raises:
            NotFound: there is none.
            Conflict: a session has it.
            Unavailable: the disk is full, or cannot be used.
        """
        visit = await self._enter((tenant, name), make=make)
        try:
            await asyncio.shield(visit.opening)
            yield visit
        except Claimed as exc:
            raise in_use(name, exc.session_id) from None
        except OSError as exc:
            raise Unavailable(
                f"the workspace cannot be used: {exc.strerror}", retry_after=10
            ) from exc
        finally:
            visit.visitors -= 1
            if not visit.visitors:
                self._end(visit)

    async def _enter(self, key: Key, *, make: bool) -> Visit:
        claim = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                while (claim := self._claims.get(key)) is not None:
                    visit = self._visits.get(key)
                    if visit is not None and not claim.is_wanted and visit.can_serve(make=make):
                        visit.visitors += 1
                        return visit
                    if not claim.leaving:
                        break
                    await asyncio.wait([claim.free])
        if claim is not None:
            raise in_use(key[1], claim.session_id)
        return self._begin(key, make=make)

    def _begin(self, key: Key, *, make: bool) -> Visit:
        claim = self._claims.add(key, "")
        claim.leaving = True
        opening = asyncio.ensure_future(self._opened(claim, make))
        self._visits[key] = visit = Visit(claim, opening, makes=make)

        def on_opened(opened: asyncio.Future[WorkspaceDirectory]) -> None:
            if not opened.cancelled() and opened.exception() is None:
                record = opened.result().record
                visit.held = Usage(record.size, record.files)

        opening.add_done_callback(on_opened)
        return visit

    async def _opened(self, claim: Claim, make: bool) -> WorkspaceDirectory:
        """Lock the workspace, and bring it up to date."""
        if self._has is not None and not make:
            is_elsewhere = await self._has(*claim.key)
            if not is_elsewhere and not await asyncio.to_thread(self._is_unsaved, *claim.key):
                raise NotFound(f"there is no workspace {claim.key[1]}")
            make = is_elsewhere
        directory = await run_to_completion(asyncio.to_thread(self._open, *claim.key, make))
        try:
            if self._hold is not None:
                await self._hold(claim, directory)
        except BaseException:
            directory.close()
            raise
        return directory

    def _is_unsaved(self, tenant: str, name: str) -> bool:
        """Whether files are here that the replica does not have yet."""
        record = read_record(self._layout.directory(tenant, name))
        return record is not None and not record.is_saved

    def _open(self, tenant: str, name: str, make: bool) -> WorkspaceDirectory:
        if make:
            made = WorkspaceDirectory.claim(self._layout, Record(tenant=tenant, name=name))
            try:
                made.files.mkdir(mode=0o700, exist_ok=True)
                made.publish()  # now, so that applications find what is written
            except BaseException:
                made.close()
                raise
            return made
        found = WorkspaceDirectory.claim_unused(self._layout, tenant, name)
        if found is None:
            raise NotFound(f"there is no workspace {name}")
        if (holder := self._layout.sandbox(found.record)) is not None:
            # Its broker died, and no broker has taken the files back.
            try:
                found.take(holder, mounts=True)
            except BaseException:
                found.close()
                raise
        return found

    def _end(self, visit: Visit) -> None:
        """Unlock the workspace after the last request."""
        claim = visit.claim
        claim.is_wanted = True  # nobody may join any more

        def end(opened: asyncio.Future[WorkspaceDirectory]) -> None:
            del self._visits[claim.key]
            directory = None
            if not opened.cancelled() and opened.exception() is None:
                directory = opened.result()
            claim.released = True
            self._put_away(claim, directory, has_changed=visit.has_changed)

        if visit.opening.done():
            end(visit.opening)
        else:
            visit.opening.add_done_callback(end)
