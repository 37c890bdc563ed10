"""Logs one line for each execution that has ended. It has no code and no output, only their sizes."""

from __future__ import annotations

import logging

from .events import ExecutionEnded, TelemetryEvent

logger = logging.getLogger(__name__)


def log_executions(event: TelemetryEvent) -> None:
    """Log an execution that has ended. This is an observer."""
    if not isinstance(event, ExecutionEnded):
        return
    fields = {
        "request_id": event.request_id,
        "tenant": event.tenant,
        "session_id": event.session_id,
        "execution_id": event.execution_id,
        "worker_id": event.worker_id,
        "outcome": event.outcome,
        "execution_time": event.execution_time,
        "code_length": event.code_length,
        "output_size": event.output_bytes,
    }
    logger.info("Code execution completed", extra={"fields": fields})
