"""How sessions and executions are described to clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.findings import Finding, Language, Level
from kernelbroker.protocol.messages import ExecutionInfo, SessionInfo

from ..service.code_operations import operation_of
from ..service.pending_confirmations import PendingConfirmation
from ..sessions.contexts import language_of
from ..sessions.session import Session
from ..sessions.store import ExecutionLog, ExecutionSummary

LAST_CODE_CHARS = 200
"""How much of the latest code a list shows."""


class ExecutionDetails(ExecutionInfo):
    """An execution with its code. `result` is null until it has ended.

    Attributes:
        operation: the operation on the project that it is; null for a cell.
    """

    code: str
    language: Language
    operation: str | None = None
    result: Result | None = None


class LastExecution(msgspec.Struct, kw_only=True):
    """The latest execution of a session; `code` is its beginning. `success` is null if it is not known."""

    execution_id: str
    state: str
    accepted_at: datetime
    success: bool | None
    code: str
    language: str
    client: str
    user: str


class ConfirmationInfo(msgspec.Struct, kw_only=True):
    """Code that waits for a decision.

    Attributes:
        session_id: where it shall run; null for a separate sandbox.
        client, user: what it came through, and whose token that had.
    """

    confirmation_id: str
    session_id: str | None
    template: str
    code: str
    language: Language
    level: Level
    findings: list[Finding]
    client: str
    user: str
    asked_at: datetime
    expires_at: datetime


def utc_time(timestamp: float) -> datetime:
    """Convert seconds since the epoch to a datetime in UTC, rounded to milliseconds."""
    return datetime.fromtimestamp(round(timestamp, 3), UTC)


def session_info(session: Session) -> SessionInfo:
    """Return the description of a session for clients."""
    return SessionInfo(**session_fields(session))


def session_fields(session: Session) -> dict[str, Any]:
    """Return the fields of a session's `SessionInfo`."""
    return {
        "session_id": session.id,
        "state": session.state,
        "template": session.options.template,
        "workspace": session.workspace,
        "workspace_warning": session.workspace_warning,
        "isolation": session.isolation,
        "created_at": utc_time(session.created_at),
        "last_active_at": utc_time(session.active_at),
        "idle_timeout": session.idle_timeout,
        "max_lifetime": session.max_lifetime,
        "executions": len(session.executions),
        "queued": session.queued,
        "restarts": session.restarts,
        "metadata": session.options.metadata,
        "language": language_of(session.options.language),
        "on_error": session.options.on_error or "rollback",
        "cwd": session.options.cwd,
        "context_of": session.options.context_of,
        "contexts": len(session.contexts),
        "from_checkpoint": session.options.from_checkpoint,
        "not_restored": list(session.not_restored),
        "kept_awake_by": list(session.sleeping.kept_awake_by),
        "runs_in": None if session.routes is None else session.spec.template,
    }


def details(log: ExecutionLog, session_id: str) -> ExecutionDetails:
    return ExecutionDetails(
        **execution_fields(log, session_id),
        code=log.request.code,
        language=log.request.language or "python",
        operation=operation_of(log.request),
        result=log.result,
    )


def execution_fields(log: ExecutionLog | ExecutionSummary, session_id: str) -> dict[str, Any]:
    """Return the fields of an execution's `ExecutionInfo`."""
    result = log.result
    return {
        "execution_id": log.id,
        "session_id": session_id,
        "state": log.state,
        "accepted_at": utc_time(log.accepted_at),
        "packages": list(log.packages),
        "success": result.success if result else None,
        "error": result.error if result else None,
        "execution_time": result.execution_time if result else None,
        "client": log.origin.client,
        "user": log.origin.user,
    }


def confirmation_info(asked: PendingConfirmation) -> ConfirmationInfo:
    """Return the description of code that waits for a confirmation."""
    return ConfirmationInfo(
        confirmation_id=asked.id,
        session_id=asked.session_id or None,
        template=asked.template,
        code=asked.request.code,
        language=asked.request.language or "python",
        level=asked.level,
        findings=list(asked.findings),
        client=asked.origin.client,
        user=asked.origin.user,
        asked_at=utc_time(asked.asked_at),
        expires_at=utc_time(asked.expires_at),
    )
