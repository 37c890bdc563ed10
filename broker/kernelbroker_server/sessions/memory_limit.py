"""Lowers the limit of memory of a sandbox that a session has leased."""

from __future__ import annotations

from kernelbroker.protocol.errors import BadRequest, Unavailable

from ..backends.base import LaunchError
from ..pool.warm_sandbox import WarmSandbox

_HEADROOM = 16 * 1024**2
"""Bytes that a sandbox must have left, so that its kernel can still answer."""


async def limit_memory(warm: WarmSandbox, size: int | None) -> None:
    """Limit the memory of a sandbox to `size` bytes; None is the limit of its template, the highest one.

    Raises:
        BadRequest: the sandbox uses more already.
        Unavailable: the limit cannot be changed.
    """
    sandbox = warm.sandbox
    if size is None or size >= sandbox.spec.limits.memory:
        if sandbox.limits.memory == sandbox.spec.limits.memory:
            return
        size = sandbox.spec.limits.memory
    used = await sandbox.memory() or 0
    if used + _HEADROOM > size:
        raise BadRequest(
            f"limits.memory is {size:,} bytes, and the sandbox uses {used:,} already; "
            f"it needs at least {used + _HEADROOM:,}"
        )
    try:
        await sandbox.limit_memory(size)
    except LaunchError as exc:
        raise Unavailable(f"{exc}; leave limits.memory out, or try again", retry_after=5) from exc
