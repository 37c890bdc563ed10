"""Who uses a session's sandbox beside its executions: files, and whatever else the gateway serves.

A visit takes the sandbox as it is; only the session's worker replaces it. Where it is being replaced,
or has died while nothing ran, visitors wait for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kernelbroker.protocol.errors import RequestError, TooManyRequests, Unavailable

from ..kernels.client import KernelClient
from ..kernels.transfer import TransferFailed
from ..pool.warm import WarmSandbox
from .lease import Lease

_MAX_VISITS = 16
"""Of one session at the same time; each may hold a connection and a chunk or two."""
_WAIT_S = 30.0
"""How long a visitor waits for a sandbox."""


class Visits:
    """
    Attributes:
        count: how many there are now.
        waiting: set while somebody waits for a living sandbox, which the worker is to see to.
    """

    def __init__(self, lease: Lease, wake: asyncio.Event) -> None:
        self.count = 0
        self.waiting: asyncio.Future[RequestError | None] | None = None
        self._lease = lease
        self._wake = wake

    @contextlib.asynccontextmanager
    async def visit(self, *, changes: bool) -> AsyncIterator[KernelClient]:
        """As `Session.visit`."""
        if self.count >= _MAX_VISITS:
            raise TooManyRequests(
                f"the session has {self.count} transfers under way; wait for one to end",
                retry_after=1,
            )
        self.count += 1
        try:
            warm = await self._living()
            try:
                yield warm.client
            except TransferFailed as exc:
                # A sandbox that died in the middle of it is no longer to be asked, but a new one is.
                raise Unavailable(
                    f"{exc}; try again, and restart the session if it stays so", retry_after=1
                ) from exc
            if changes and self._lease.alive is not warm:
                raise Unavailable("the sandbox was replaced meanwhile; try again", retry_after=1)
        finally:
            self.count -= 1

    async def renew(self) -> None:
        """For the worker: see to a living sandbox, and tell those who wait."""
        error: RequestError | None = None
        try:
            await self._lease.living()
        except RequestError as exc:
            error = exc
        self.end(error)

    def end(self, error: RequestError | None) -> None:
        """Tell those who wait."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.set_result(error)

    async def _living(self) -> WarmSandbox:
        while (warm := self._lease.alive) is None:
            if self.waiting is None:
                self.waiting = asyncio.get_running_loop().create_future()
                self._wake.set()
            try:
                async with asyncio.timeout(_WAIT_S):
                    error = await asyncio.shield(self.waiting)
            except TimeoutError:
                raise Unavailable(
                    f"the session had no sandbox for {_WAIT_S:g} s; try again", retry_after=5
                ) from None
            if error is not None:
                raise error
        return warm
