"""Holds a workspace to its limits: looks at it from time to time, and ends what writes too much.

File systems that can do this by themselves are rare, so it is watched instead. Over the limit the
running cell is interrupted; one that writes on regardless loses its kernel. The files stay, and later
cells run, for they may delete: only what a cell adds is held against it. Uploads are refused before they
pass the limit, for the broker sees their bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kernelbroker.protocol.errors import TooLarge
from kernelbroker.protocol.events import Result

from ..backends.base import Limits
from ..backends.usage import Usage
from .execution import QUOTA_EXCEEDED, Abort, Execution, ExecutionState

_BUSY_S = 1.0
_CLOSE_S = 0.2
"""Between looks while a cell runs, and once it has been interrupted."""
_IDLE_S = 20.0
_SHARE = 10
"""A look that took a second is followed by this many without one, less that second."""
_FRESH_S = 10.0
"""How long an upload that seems too much waits for a look, since files may have been deleted."""
_SLACK = 64 * 1024**2
_SLACK_FILES = 1000


class Standing(enum.Enum):
    WITHIN = "within"
    OVER = "over"
    FAR_OVER = "far over"


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes and inodes that a workspace may hold."""

    size: int
    files: int

    @classmethod
    def of(cls, limits: Limits) -> Quota:
        return cls(limits.workspace_size, limits.workspace_files)

    @property
    def enough(self) -> int:
        """Inodes after which counting on would tell nothing new."""
        return 2 * self.files + _SLACK_FILES

    def standing(self, usage: Usage, before: Usage) -> Standing:
        """Where it stands now; what was there `before` counts for nothing, were it over the limit."""
        size = usage.size - max(self.size, before.size)
        files = usage.files - max(self.files, before.files)
        if size > max(_SLACK, self.size // 10) or files > max(_SLACK_FILES, self.files // 10):
            return Standing.FAR_OVER
        return Standing.OVER if size > 0 or files > 0 else Standing.WITHIN

    def complaint(self, usage: Usage) -> str | None:
        """What to say of a workspace that holds too much, and what to do; None if it does not."""
        if usage.size > self.size:
            held, limit = _text(usage.size), _text(self.size)
        elif usage.files > self.files:
            held, limit = f"{usage.files:,} files and directories", f"{self.files:,}"
        else:
            return None
        return f"the workspace holds {held}, its limit is {limit}; delete files below /data"

    def refusal(self, usage: Usage, more: Usage) -> str | None:
        """What to say of an upload of so much more; None if it fits."""
        if usage.size + more.size > self.size:
            held, limit, asked = _text(usage.size), _text(self.size), _text(more.size)
        elif usage.files + more.files > self.files:
            held, limit, asked = f"{usage.files:,} files and directories", f"{self.files:,}", "one"
        else:
            return None
        return (
            f"the workspace holds {held}, its limit is {limit}: {asked} more does not fit; "
            "delete files below /data"
        )


class Upload:
    """What a client is uploading.

    Attributes:
        held: what it counts for.
    """

    def __init__(self, hold: Callable[[Upload, Usage], Awaitable[None]]) -> None:
        self.held = Usage()
        self._hold = hold

    async def grow(self, size: int) -> None:
        """It has so many bytes more than was said. Raises TooLarge."""
        await self._hold(self, Usage(size, 0))


class Watch:
    """Watches the workspace of one session, in `run`.

    Args:
        usage: what the workspace holds at the beginning.
        measure: how much a workspace holds.
        workspace: where the files are now; None while no sandbox has them.
        running: the execution that runs.
        replace: ends all that runs in an idle session's sandbox.
        grace: seconds that an interrupted cell has to stop writing.
    """

    def __init__(
        self,
        quota: Quota,
        usage: Usage,
        *,
        measure: Callable[[Path, int], Awaitable[Usage]],
        workspace: Callable[[], Path | None],
        running: Callable[[], Execution | None],
        replace: Callable[[], None],
        grace: float,
    ) -> None:
        self.usage = usage
        self._quota = quota
        self._measure = measure
        self._workspace = workspace
        self._running = running
        self._replace = replace
        self._grace = grace
        self._before = usage
        self._received = self._received_before = Usage()
        """What clients uploaded, and how much of it before the last look began."""
        self._uploads: set[Upload] = set()
        self._looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the next look is."""
        self._interrupted: tuple[Execution, float] | None = None
        self._wake = asyncio.Event()
        self._asked = False
        self._visited = False
        self._rest_until = 0.0

    def begin(self) -> None:
        """An execution begins."""
        self._before = self.usage
        self._interrupted = None
        self._wake.set()

    def end(self) -> None:
        """An execution has ended: look what it left, soon."""
        self._asked = True
        self._wake.set()

    def visited(self) -> None:
        """A client changed files; that is not held against what runs in the sandbox."""
        self._visited = True
        self.end()

    @contextlib.asynccontextmanager
    async def upload(self, size: int) -> AsyncIterator[Upload]:
        """Room for a file or directory of so many bytes, held while it is made.

        Raises:
            TooLarge: it is more than the workspace may hold.
        """
        upload = Upload(self._hold)
        try:
            await self._hold(upload, Usage(size, 1))
            yield upload
            self._received = _sum(self._received, upload.held)  # till a look has seen it
        finally:
            self._uploads.discard(upload)

    async def _hold(self, upload: Upload, more: Usage) -> None:
        if self._quota.refusal(self._with_uploads(), more) is not None:
            looked = self._looked
            self.end()
            await asyncio.wait([looked], timeout=_FRESH_S)
            if (refusal := self._quota.refusal(self._with_uploads(), more)) is not None:
                raise TooLarge(refusal)
        upload.held = _sum(upload.held, more)
        self._uploads.add(upload)

    def _with_uploads(self) -> Usage:
        """With what no look has seen: what is being uploaded has no name yet, so that none can."""
        received, before = self._received, self._received_before
        size, files = received.size - before.size, received.files - before.files
        return _sum(self.usage, Usage(size, files), *(upload.held for upload in self._uploads))

    async def before_result(self, result: Result) -> str | None:
        """What to tell with this result about the workspace, if there is anything.

        Looks only where there is reason to, for a client waits.
        """
        truncated = result.truncated is not None and result.truncated.files
        if result.files or truncated or self._quota.complaint(self.usage):
            await self._look()
            return self._quota.complaint(self.usage)
        return None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._pause()
            await self._look()
            running = self._running()
            if running is None or running.state is not ExecutionState.RUNNING:
                standing = self._quota.standing(self.usage, self._before)
                if standing is Standing.FAR_OVER and not self._visited:
                    self._replace()  # something writes on in the background
                self._before, self._visited = self.usage, False
            else:
                self._judge(running)

    def _judge(self, running: Execution) -> None:
        standing = self._quota.standing(self.usage, self._before)
        complaint = self._quota.complaint(self.usage)
        if standing is Standing.WITHIN or complaint is None:
            return
        now = time.monotonic()
        if self._interrupted is None or self._interrupted[0] is not running:
            self._interrupted = (running, now)
            running.interrupt("quota_exceeded", complaint)
        elif standing is Standing.FAR_OVER and now - self._interrupted[1] >= self._grace:
            message = (
                f"{complaint}. The cell wrote on, so the kernel was replaced; its variables are lost, "
                "the files are kept"
            )
            running.abort(Abort("quota_exceeded", QUOTA_EXCEEDED, message))

    async def _look(self) -> None:
        workspace = self._workspace()
        self._asked = False
        if workspace is None:
            return
        looked, self._looked = self._looked, asyncio.get_running_loop().create_future()
        received, begun = self._received, time.monotonic()
        try:
            usage = await self._measure(workspace, self._quota.enough)
            if workspace == self._workspace():  # else it was taken away meanwhile
                self.usage, self._received_before = usage, received
        finally:
            looked.set_result(None)
        now = time.monotonic()
        self._rest_until = now + (_SHARE - 1) * (now - begun)

    async def _pause(self) -> None:
        """Until the next look is due, which may change meanwhile."""
        begun = time.monotonic()
        while True:
            if self._asked:
                due = 0.0
            elif self._running() is None:
                due = begun + _IDLE_S
            else:
                due = begun + (_CLOSE_S if self._interrupted else _BUSY_S)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due, self._rest_until) - time.monotonic()):
                    await self._wake.wait()
                    continue
            return


def _sum(*usages: Usage) -> Usage:
    return Usage(sum(each.size for each in usages), sum(each.files for each in usages))


def _text(size: int) -> str:
    """Bytes as people write them."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
