"""What telemetry is told of an execution that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelbroker.protocol.events import Result

from ..telemetry.events import code_hash
from .store import ExecutionLog


def summary_of(
    log: ExecutionLog, ids: Mapping[str, Any], age: float, worker_id: str | None
) -> dict[str, Any]:
    """Return the fields of its `ExecutionEnded`.

    Args:
        ids: those of its log records.
        age: seconds since it was accepted.
        worker_id: the sandbox in which it ran; None if it has not run.
    """
    return {
        "execution_id": log.id,
        "language": log.request.language or "python",
        "code_sha256": code_hash(log.request.code),
        "outcome": log.outcome,
        "started_at": log.accepted_at,
        "queued_s": age if log.queued_s is None else log.queued_s,
        "total_s": age,
        "output_bytes": log.size,
        "packages": log.packages,
        "traceparent": ids.get("traceparent"),
        "request_id": ids.get("request_id"),
        "worker_id": worker_id,
        "execution_time": None if log.result is None else log.result.execution_time,
        "code_length": len(log.request.code),
        "variables": _count_variables(log.result),
    }


def _count_variables(result: Result | None) -> int | None:
    """The number of the session's variables, listed or not; None if the kernel sent no result."""
    if result is None or result.execution_time is None:
        return None
    return len(result.variables) + (result.truncated.variables if result.truncated else 0)
