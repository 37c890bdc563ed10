"""How a session uses its sandbox besides executions: its gateway, space for uploads, its limits."""

from __future__ import annotations

import contextlib

from kernelbroker.protocol.messages import SandboxLimits

from ..kernels.gateway import GatewayConnection
from ..workspaces.quota_watch import Upload
from .borrowing import borrowed
from .session_contexts import SessionWithContexts


class SandboxUser(SessionWithContexts):
    """The base of `Session`."""

    async def change_limits(self, limits: SandboxLimits) -> None:
        """Change its own limits. Raises SessionGone, and as `Lease.change_limits`."""
        self.expect_open()
        await self._lease.change_limits(limits)

    def borrow(
        self, *, changes: bool = False
    ) -> contextlib.AbstractAsyncContextManager[GatewayConnection]:
        """Yield the gateway of the living sandbox; see `borrowing.borrowed`."""
        return borrowed(self._runner, self._lease, changes=changes)

    def upload(self, size: int) -> contextlib.AbstractAsyncContextManager[Upload]:
        """Reserve space for an upload; see `QuotaWatch.upload`."""
        return self._runner.watch.upload(size)
