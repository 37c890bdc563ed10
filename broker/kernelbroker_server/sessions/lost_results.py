"""The result of an execution whose end nobody knows."""

from __future__ import annotations

from kernelbroker.protocol.events import Cause, ErrorDetail, Result


def lost_result(message: str, *, begun: bool) -> Result:
    """Return the result of an execution whose end the store does not know.

    Args:
        begun: a sandbox had it, so it may have run.
    """
    cause: Cause = "sandbox_lost" if begun else "rejected"
    name = "SandboxLost" if begun else "NeverRan"
    detail = ErrorDetail(name=name, value=message, cause=cause)
    return Result(
        success=False, error=f"{name}: {message}", error_detail=detail, kernel_restarted=begun
    )
