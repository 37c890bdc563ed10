"""Lowers the limits of a sandbox that a session has leased."""

from __future__ import annotations

from kernelbroker.protocol.errors import BadRequest, Unavailable
from kernelbroker.protocol.messages import SandboxLimits

from ..backends.base import Isolation, LaunchError
from ..pool.warm_sandbox import WarmSandbox

_HEADROOM = 16 * 1024**2
"""Bytes that a sandbox must have left, so that its kernel can still answer."""


async def change_limits(
    warm: WarmSandbox | None, isolation: Isolation, present: SandboxLimits, wanted: SandboxLimits
) -> None:
    """Change the limits of a session's sandbox, if it has one.

    Raises:
        BadRequest: they cannot be those of this sandbox, or would give a network back.
        Unavailable: a limit cannot be changed.
    """
    if present.network is not None and wanted.network is None:
        raise BadRequest('limits.network is "none", and stays so: send it again, or open a session')
    if warm is not None:
        if wanted.network is not None:
            await cut_network(warm, isolation)
        await _limit_use(warm, wanted)


async def cut_network(warm: WarmSandbox, isolation: Isolation) -> None:
    """Take its network away from a sandbox, before code of its session runs in it.

    Raises:
        BadRequest: that cannot be done in this template.
    """
    if isolation is Isolation.PROCESS:
        raise BadRequest(
            "limits.network is none, and sandboxes of this template are plain processes, which have the "
            "host's network; choose another template"
        )
    try:
        await warm.sandbox.cut_network()
    except LaunchError as exc:
        raise BadRequest(f"limits.network is none, but {exc}; choose another template") from exc


async def _limit_use(warm: WarmSandbox, wanted: SandboxLimits) -> None:
    """Limit the memory and the processors of a sandbox, at most to those of its template.

    Raises:
        BadRequest: the sandbox uses more memory already.
        Unavailable: a limit cannot be changed.
    """
    sandbox = warm.sandbox
    own, present = sandbox.spec.limits, sandbox.limits
    memory, cpus = (
        min(wanted.memory or own.memory, own.memory),
        min(wanted.cpus or own.cpus, own.cpus),
    )
    if (memory, cpus) == (present.memory, present.cpus):
        return
    used = await sandbox.memory() or 0
    if memory < own.memory and used + _HEADROOM > memory:
        raise BadRequest(
            f"limits.memory is {memory:,} bytes, and the sandbox uses {used:,} already; "
            f"it needs at least {used + _HEADROOM:,}"
        )
    try:
        await sandbox.change_limits(memory, cpus)
    except LaunchError as exc:
        advice = "leave limits.memory and limits.cpus out, or try again"
        raise Unavailable(f"{exc}; {advice}", retry_after=5) from exc
