"""Helpers that read the results of cells, from the broker and the SDK."""

from __future__ import annotations

from kernelbroker import ExecutionResult
from kernelbroker.protocol.events import Result


def cause_of(result: Result | ExecutionResult | None) -> str:
    """The cause of a cell's failure; the cell must have failed."""
    assert result is not None
    assert result.error_detail is not None, result
    return result.error_detail.cause
