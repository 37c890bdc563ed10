"""Writes who did what, when and how it ended to the audit log; code only as its hash."""

from __future__ import annotations

from ..audit import Audit
from .facts import (
    ExecutionEnded,
    ExecutionRefused,
    Fact,
    OfSession,
    RequestEnded,
    SandboxLeased,
    SandboxReplaced,
    SessionClosed,
    SessionOpened,
)


class Audited:
    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def notice(self, fact: Fact) -> None:
        match fact:
            case RequestEnded(status=401 | 403):
                self._audit.record(
                    "request.refused",
                    tenant=fact.tenant,
                    method=fact.method,
                    route=fact.route,
                    status=fact.status,
                )
            case SessionOpened():
                self._audit.record("session.open", **_whose(fact))
            case SessionClosed():
                self._audit.record("session.close", **_whose(fact), reason=fact.reason)
            case SandboxLeased():
                self._audit.record(
                    "session.lease",
                    **_whose(fact),
                    sandbox=fact.sandbox_id,
                    waited_s=round(fact.seconds, 3),
                )
            case SandboxReplaced():
                self._audit.record("session.replace", **_whose(fact), cause=fact.cause)
            case ExecutionEnded():
                self._audit.record(
                    "execution",
                    **_whose(fact),
                    execution=fact.execution_id,
                    language=fact.language,
                    code_sha256=fact.code_sha256,
                    **({"packages": list(fact.packages)} if fact.packages else {}),
                    outcome=fact.outcome,
                    queued_s=round(fact.queued_s, 3),
                    total_s=round(fact.total_s, 3),
                )
            case ExecutionRefused():
                self._audit.record(
                    "execution.refused",
                    **_whose(fact),
                    language=fact.language,
                    code_sha256=fact.code_sha256,
                    policy=fact.mode,
                )


def _whose(fact: OfSession) -> dict[str, str | None]:
    session = fact.session_id or None
    return {"tenant": fact.tenant, "template": fact.template, "session": session}
