"""A session's claim on a workspace of a `DirectoryStore`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kernelbroker.protocol.errors import Unavailable

from ..backends.base import LaunchError, Sandbox, Usage
from ..cancellation import run_to_completion
from .claims import Claim
from .layout import NO_TENANT, Layout, Record
from .replica import Holding
from .store import Workspace
from .workspace_directory import WorkspaceDirectory

logger = logging.getLogger(__name__)


class DirectoryWorkspace(Workspace):
    """A session's claim on a workspace in a directory.

    Attributes:
        directory: the workspace on the disk. A workspace that is not kept after its session has None, until
            its files must be stored between two sandboxes.
    """

    def __init__(
        self,
        layout: Layout,
        claim: Claim,
        record: Record,
        directory: WorkspaceDirectory | None,
        release: Callable[[Claim, WorkspaceDirectory | None], None],
        holding: Holding | None = None,
    ) -> None:
        self.name = claim.key[1]
        self.initial_usage = Usage(record.size, record.files)
        self.max_size = record.max_size
        self.directory = directory
        self._layout = layout
        self._release = release
        self._claim = claim
        self._record = record
        self._holding = holding

    @property
    def warning(self) -> str | None:
        return None if self._holding is None else self._holding.warning

    @property
    def is_stored(self) -> bool:
        return self.directory is not None

    @property
    def is_kept(self) -> bool:
        return self._record.tenant != NO_TENANT

    async def attach(self, sandbox: Sandbox) -> None:
        if (directory := self.directory) is None:
            return
        try:
            await run_to_completion(asyncio.to_thread(lambda: directory.give(sandbox.workspace)))
            await sandbox.push_files()
        except (OSError, LaunchError) as exc:
            raise Unavailable(f"the files cannot be moved: {exc}", retry_after=10) from exc
        if self._holding is not None:
            self._holding.keep_saving(sandbox.workspace)

    async def detach(self, sandbox: Sandbox) -> None:
        await run_to_completion(self._detach(sandbox))

    async def _detach(self, sandbox: Sandbox) -> None:
        await sandbox.kill()  # files that it writes after the move would be lost
        if self._holding is not None:
            await self._holding.pause()
        try:
            await sandbox.pull_files()
        except LaunchError:
            logger.exception("changes of files in sandbox %s are lost", sandbox.id)
        try:
            await asyncio.to_thread(self._take, sandbox)
        except OSError:
            logger.exception("the files of sandbox %s are lost", sandbox.id)

    def _take(self, sandbox: Sandbox) -> None:
        if self.directory is None:
            self.directory = WorkspaceDirectory.claim(self._layout, self._record)
        spec = sandbox.spec
        mounts = spec.shared_data is not None or spec.project is not None
        self.directory.take(sandbox.workspace, mounts=mounts)

    def leave(self) -> None:
        self._claim.leaving = True

    def hand_over(self) -> None:
        if self._holding is not None:
            self._holding.leave()
        if self.directory is not None:
            self.directory.close()

    def release(self) -> None:
        self._release(self._claim, self.directory)
