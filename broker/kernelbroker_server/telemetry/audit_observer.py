"""Writes telemetry events to the audit log. Code appears only as its hash."""

from __future__ import annotations

from ..audit import Audit
from .events import (
    CodeOperationEnded,
    ConfirmationAnswered,
    ExecutionEnded,
    ExecutionRefused,
    FileOperationEnded,
    ProcessStarted,
    RequestEnded,
    SandboxLeased,
    SandboxReplaced,
    SessionClosed,
    SessionEvent,
    SessionOpened,
    TelemetryEvent,
)


class AuditObserver:
    """Records who did what, and how it ended. `on_event` is the observer."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def on_event(self, event: TelemetryEvent) -> None:
        match event:
            case RequestEnded(status=401 | 403):
                self._audit.record(
                    "request.refused",
                    tenant=event.tenant,
                    method=event.method,
                    route=event.route,
                    status=event.status,
                )
            case SessionOpened():
                self._audit.record("session.open", **_session_fields(event))
            case SessionClosed():
                self._audit.record("session.close", **_session_fields(event), reason=event.reason)
            case SandboxLeased():
                self._audit.record(
                    "session.lease",
                    **_session_fields(event),
                    sandbox=event.sandbox_id,
                    waited_s=round(event.seconds, 3),
                )
            case SandboxReplaced():
                self._audit.record("session.replace", **_session_fields(event), cause=event.cause)
            case ExecutionEnded():
                self._audit.record(
                    "execution",
                    **_session_fields(event),
                    execution=event.execution_id,
                    language=event.language,
                    code_sha256=event.code_sha256,
                    **({"packages": list(event.packages)} if event.packages else {}),
                    outcome=event.outcome,
                    queued_s=round(event.queued_s, 3),
                    total_s=round(event.total_s, 3),
                )
            case ExecutionRefused():
                self._audit.record(
                    "execution.refused",
                    **_session_fields(event),
                    language=event.language,
                    code_sha256=event.code_sha256,
                    policy=event.mode,
                )
            case ConfirmationAnswered():
                self._audit.record(
                    "confirmation",
                    **_session_fields(event),
                    code_sha256=event.code_sha256,
                    answer=event.answer,
                    user=event.user,
                )
            case ProcessStarted():
                self._audit.record(
                    "process",
                    **_session_fields(event),
                    program=event.program,
                    command_sha256=event.command_sha256,
                    outcome=event.outcome,
                )
            case CodeOperationEnded():
                self._audit.record(
                    "operation",
                    **_session_fields(event),
                    operation=event.operation,
                    path=event.path,
                    outcome=event.outcome,
                    seconds=round(event.seconds, 3),
                )
            case FileOperationEnded():
                self._audit.record(
                    "file",
                    **_session_fields(event),
                    operation=event.operation,
                    **({"workspace": event.workspace} if event.workspace else {}),
                    path=event.path,
                    **({"target": event.target} if event.operation == "move" else {}),
                    outcome=event.outcome,
                    bytes=event.size,
                )


def _session_fields(event: SessionEvent) -> dict[str, str | None]:
    session = event.session_id or None
    return {"tenant": event.tenant, "template": event.template, "session": session}
