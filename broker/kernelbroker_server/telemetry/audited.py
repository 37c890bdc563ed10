"""Writes who did what, when and how it ended to the audit log; code only as its hash."""

from __future__ import annotations

from ..audit import Audit
from .observer import ExecutionFacts, Observer


class Audited(Observer):
    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def request_ended(
        self,
        tenant: str | None,
        method: str,
        route: str,
        status: int,
        seconds: float,  # noqa: ARG002
    ) -> None:
        if status in (401, 403):
            self._audit.record(
                "request.refused", tenant=tenant, method=method, route=route, status=status
            )

    def session_opened(self, tenant: str, template: str, session_id: str) -> None:
        self._audit.record("session.open", tenant=tenant, template=template, session=session_id)

    def session_closed(self, tenant: str, template: str, session_id: str, reason: str) -> None:
        self._audit.record(
            "session.close", tenant=tenant, template=template, session=session_id, reason=reason
        )

    def execution_ended(self, facts: ExecutionFacts) -> None:
        self._audit.record(
            "execution",
            tenant=facts.tenant,
            template=facts.template,
            session=facts.session_id,
            execution=facts.execution_id,
            language=facts.language,
            code_sha256=facts.code_sha256,
            **({"packages": list(facts.packages)} if facts.packages else {}),
            outcome=facts.outcome,
            queued_s=round(facts.queued_s, 3),
            total_s=round(facts.total_s, 3),
        )

    def execution_refused(
        self,
        tenant: str,
        template: str,
        session_id: str,
        language: str,
        code_sha256: str,
        mode: str,
    ) -> None:
        self._audit.record(
            "execution.refused",
            tenant=tenant,
            template=template,
            session=session_id or None,
            language=language,
            code_sha256=code_sha256,
            policy=mode,
        )

    def sandbox_leased(
        self, tenant: str, template: str, session_id: str, sandbox_id: str, seconds: float
    ) -> None:
        self._audit.record(
            "session.lease",
            tenant=tenant,
            template=template,
            session=session_id,
            sandbox=sandbox_id,
            waited_s=round(seconds, 3),
        )

    def sandbox_replaced(self, tenant: str, template: str, session_id: str, cause: str) -> None:
        self._audit.record(
            "session.replace", tenant=tenant, template=template, session=session_id, cause=cause
        )
