"""What the results of cells tell, the broker's and the SDK's."""

from __future__ import annotations

from kernelbroker import ExecutionResult
from kernelbroker.protocol.events import Result


def cause_of(result: Result | ExecutionResult | None) -> str:
    """Why a cell failed, which it must have."""
    assert result is not None
    assert result.error_detail is not None, result
    return result.error_detail.cause
