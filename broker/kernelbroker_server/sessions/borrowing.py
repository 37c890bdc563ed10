"""The use of a session's gateway beside its executions, such as for files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kernelbroker.protocol.errors import Unavailable

from ..kernels.gateway import GatewayConnection
from ..kernels.transfer import TransferFailed
from ..pool.warm_sandbox import WarmSandbox
from .lease import Lease
from .runner import SessionRunner

_TIMEOUT_S = 30.0
"""How long a borrower waits for a living sandbox."""
_NO_SANDBOX = f"the session had no sandbox for {_TIMEOUT_S:g} s; try again"
_TRY_AGAIN = "try again, and restart the session if that does not help"


@contextlib.asynccontextmanager
async def borrowed_sandbox(
    runner: SessionRunner, *, changes: bool = False
) -> AsyncIterator[WarmSandbox]:
    """Yield the living sandbox, for use beside the executions. As `borrowed`."""
    borrower, granted = runner.borrow()
    try:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                warm = await granted
        except TimeoutError:
            raise Unavailable(_NO_SANDBOX, retry_after=5) from None
        runner.machine.expect_open()
        yield warm
    finally:
        runner.give_back(borrower, changes=changes)


@contextlib.asynccontextmanager
async def borrowed(
    runner: SessionRunner, lease: Lease, *, changes: bool
) -> AsyncIterator[GatewayConnection]:
    """Yield the gateway of the living sandbox, for use beside the executions.

    This counts as activity. If the sandbox is being replaced, or has died while nothing ran, wait for
    the next one.

    Args:
        changes: the caller changes files. If the sandbox is replaced meanwhile, changes may be lost.

    Raises:
        SessionGone, TooManyRequests, Unavailable
    """
    async with borrowed_sandbox(runner, changes=changes) as warm:
        try:
            yield warm.gateway
        except TransferFailed as exc:  # the sandbox died meanwhile, or the session was closed
            runner.machine.expect_open()
            raise Unavailable(f"{exc}; {_TRY_AGAIN}", retry_after=1) from exc
        if changes and lease.alive is not warm:
            raise Unavailable("the sandbox was replaced meanwhile; try again", retry_after=1)
