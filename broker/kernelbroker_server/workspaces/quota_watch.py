"""Enforces the quota of a workspace: measures it periodically, and tells its session what to do.

The rules are in `quota.py`. Uploads are refused before they exceed the limit, since the broker counts their
bytes. How much a cell can write beyond the limit depends on how often the workspace is measured, and how
fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from kernelbroker.protocol.errors import TooLarge
from kernelbroker.protocol.events import Result

from ..backends.base import Usage
from .disk_room import DiskRoom
from .quota import Quota, QuotaAction, QuotaState

logger = logging.getLogger(__name__)

_BUSY_S = 1.0
_CLOSE_S = 0.2
_IDLE_S = 20.0
"""Seconds between measurements: while a cell runs, after an interrupt or an incomplete one, and else."""
_SHARE = 10
"""Measuring takes at most one part in this many of the time."""
_REST_S = 0.1
"""The least time between two measurements. Short cells follow each other faster than this."""
_FRESH_S = 10.0
"""How long an upload that does not fit waits for a new measurement. Files may have been deleted."""


class Upload:
    """A running upload.

    Attributes:
        held: the bytes and inodes that are reserved for it.
    """

    def __init__(self, hold: Callable[[Upload, Usage], Awaitable[None]]) -> None:
        self.held = Usage()
        self._hold = hold

    async def grow(self, size: int) -> None:
        """Reserve `size` more bytes. Raises TooLarge."""
        await self._hold(self, Usage(size, 0))


class QuotaWatch:
    """Watches the workspace of one session, in `run`.

    Args:
        initial: the usage when the session begins.
        usage: counts bytes, and inodes up to a bound; returns None while no sandbox has the files.
        grace: seconds that an interrupted cell has to stop writing.
        room: of the disk. While it is short, the workspace may not grow.

    Attributes:
        listeners: called with an action and its reason when the quota is exceeded: the session and its
            contexts.
        changes: grows whenever a client, or a cell of one of these kernels, has changed files. It tells a
            kernel whether others have.
    """

    def __init__(
        self,
        quota: Quota,
        initial: Usage,
        *,
        usage: Callable[[int], Awaitable[Usage | None]],
        grace: float,
        room: DiskRoom,
    ) -> None:
        self._template_quota = self._quota = quota
        self._room = room
        self._state = QuotaState(quota, initial, grace)
        self._measure = usage
        self.listeners: set[Callable[[QuotaAction, str], None]] = set()
        self.changes = 0
        self._running = 0
        self._cells = 0
        self._received = self._received_before = Usage()
        """Sum of completed uploads: now, and when the last measurement began."""
        self._uploads: set[Upload] = set()
        self._looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the next measurement is done."""
        self._failed = False
        self._wake = asyncio.Event()
        self._asked = False
        self._visited = False
        self._rest_until = 0.0
        self._paused_at = self._paused_until = 0.0
        """When the present pause began, and when it ends unless something changes."""

    def change(self, quota: Quota) -> None:
        """Set another quota: the session has moved to another template."""
        self._template_quota = quota
        self._quota = quota.held_at(self.usage) if self._room.is_short else quota
        self._state.change(self._quota)

    def _on_room(self) -> None:
        """There is room on the disk again, or no more."""
        self.change(self._template_quota)
        self.look_soon()

    @property
    def usage(self) -> Usage:
        """The usage at the last measurement."""
        return self._state.usage

    @property
    def refusal(self) -> str | None:
        """The reason why no cell may run; None if cells may run."""
        return self._state.refusal

    def begin(self) -> None:
        """Call this when a cell begins to run."""
        self._running += 1
        self._cells += 1
        self._state.begin_cell()
        self._wake_if_due_earlier()

    def end(self) -> None:
        """Call this when a cell has ended. Measures soon."""
        self._running -= 1
        self.look_soon()

    def look_soon(self) -> None:
        self._asked = True
        self._wake_if_due_earlier()

    def visited(self) -> None:
        """Call this when a client changed files. The next growth is then not blamed on background code."""
        self._visited = True
        self.changes += 1
        self.look_soon()

    @contextlib.asynccontextmanager
    async def upload(self, size: int) -> AsyncIterator[Upload]:
        """Reserve room for a file or directory of `size` bytes while it is made.

        Raises:
            TooLarge: it would exceed the quota.
        """
        upload = Upload(self._hold)
        try:
            await self._hold(upload, Usage(size, 1))
            yield upload
            # It counts until the next measurement includes it.
            self._received = _sum(self._received, upload.held)
        finally:
            self._uploads.discard(upload)

    async def _hold(self, upload: Upload, more: Usage) -> None:
        if self._quota.refusal(self._with_uploads(), more) is not None:
            looked = self._looked
            self.look_soon()
            await asyncio.wait([looked], timeout=_FRESH_S)
            if (refusal := self._quota.refusal(self._with_uploads(), more)) is not None:
                raise TooLarge(refusal)
        upload.held = _sum(upload.held, more)
        self._uploads.add(upload)

    def _with_uploads(self) -> Usage:
        """The usage, with uploads that no measurement includes: a running upload has no name yet."""
        received, before = self._received, self._received_before
        size, files = received.size - before.size, received.files - before.files
        return _sum(self.usage, Usage(size, files), *(upload.held for upload in self._uploads))

    async def before_result(self, result: Result) -> str | None:
        """The message about the quota for this result, if there is one.

        Measures only if what the cell wrote may have exceeded the quota, since a client waits.
        """
        truncated = result.truncated is not None and result.truncated.files
        written = Usage(sum(file.size for file in result.files), len(result.files))
        if (
            truncated
            or self._state.complaint
            or self._quota.is_half_used(_sum(self.usage, written))
        ):
            await self._look()
            return self._state.complaint
        return None

    async def run(self) -> None:
        """Measure periodically until cancelled."""
        self._room.listeners.add(self._on_room)
        try:
            self.change(self._template_quota)  # there may be no room from the beginning
            while True:
                await self._pause()
                await self._look()
        finally:
            self._room.listeners.discard(self._on_room)

    async def _look(self) -> None:
        """Measure the workspace, and tell the session what to do."""
        self._asked = False
        looked, self._looked = self._looked, asyncio.get_running_loop().create_future()
        begun, client_wrote = time.monotonic(), self._visited
        self._visited = False
        try:
            # A measurement from before the running cell says nothing about that cell, so it is repeated;
            # only once, since cells can be shorter than a measurement.
            for _ in range(2):
                cells, received = self._cells, self._received
                found = await self._measured()
                if cells == self._cells:
                    break
            now = time.monotonic()
            if found is not None:
                self._received_before = received
                action = self._state.look(
                    found, now=now, cell_runs=self._running > 0, client_wrote=client_wrote
                )
                if action is not None:
                    for listener in (*self.listeners,):
                        listener(*action)
        finally:
            looked.set_result(None)
        self._rest_until = now + max(_REST_S, (_SHARE - 1) * (now - begun))

    async def _measured(self) -> Usage | None:
        """The usage; None if it is unknown, for which no cell may suffer."""
        try:
            usage = await self._measure(self._state.max_count)
        except Exception:  # such as no thread can be started
            if not self._failed:
                logger.exception("a workspace could not be measured")
            self._failed = True
            return None
        self._failed = False
        return usage

    async def _pause(self) -> None:
        """Wait until the next measurement is due. The due time may change meanwhile."""
        self._paused_at = time.monotonic()
        while (seconds := self._due() - time.monotonic()) > 0:
            self._paused_until = time.monotonic() + seconds
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    def _due(self) -> float:
        """When the next measurement is due."""
        if self._asked:
            return self._rest_until
        seconds = _BUSY_S if self._running else _IDLE_S
        if self._state.is_urgent or (self._running and self._room.is_short):
            seconds = _CLOSE_S
        return max(self._paused_at + seconds, self._rest_until)

    def _wake_if_due_earlier(self) -> None:
        """Between short cells the due time changes often, mostly to a later one."""
        if self._due() < self._paused_until:
            self._wake.set()


def _sum(*usages: Usage) -> Usage:
    return Usage(sum(each.size for each in usages), sum(each.files for each in usages))
