"""How a session uses its sandbox besides executions: its gateway, space for uploads, its limits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from kernelbroker.protocol.errors import Conflict
from kernelbroker.protocol.messages import SandboxLimits

from ..kernels.gateway import GatewayConnection
from ..workspaces.quota_watch import Upload
from .borrowing import borrowed
from .process_saving import Store, T, save_processes
from .session_contexts import SessionWithContexts


class SandboxUser(SessionWithContexts):
    """The base of `Session`."""

    async def change_limits(self, limits: SandboxLimits) -> None:
        """Change its own limits. Raises SessionGone, and as `Lease.change_limits`."""
        self.expect_open()
        await self._lease.change_limits(limits)

    @property
    def why_no_process_checkpoints(self) -> str:
        """Why its processes cannot be saved; empty if they can."""
        if self.options.secrets:
            return "the session has secrets, which are never on the disk"
        if self.session is not None or self.contexts:
            return "it has contexts, or is one"
        return self._lease.why_no_process_checkpoints

    async def save_processes(
        self, store: Store[T], *, files: bool, fall_asleep: Callable[[], bool] | None = None
    ) -> T:
        """Save its processes; see `process_saving.save_processes`.

        Raises:
            Conflict: they cannot be saved, also as `why_no_process_checkpoints` says.
        """
        if reason := self.why_no_process_checkpoints:
            raise Conflict(f'{reason}: use mode="values"')
        if self.streams:
            raise Conflict('streams of the session are open: close them, or use mode="values"')
        async with self.borrow():  # it is awake
            pass
        return await save_processes(
            self._runner, self._lease, store, files=files, fall_asleep=fall_asleep
        )

    def borrow(
        self, *, changes: bool = False
    ) -> contextlib.AbstractAsyncContextManager[GatewayConnection]:
        """Yield the gateway of the living sandbox; see `borrowing.borrowed`."""
        return borrowed(self._runner, self._lease, changes=changes)

    def upload(self, size: int) -> contextlib.AbstractAsyncContextManager[Upload]:
        """Reserve space for an upload; see `QuotaWatch.upload`."""
        return self._runner.watch.upload(size)
