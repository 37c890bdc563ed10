"""Use cases of people who decide about code that a policy holds back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from kernelbroker.protocol.messages import ExecutionRequest

from ..sessions.registry import Registry
from ..sessions.store import ExecutionLog
from ..telemetry.events import ConfirmationAnswered, Observer, code_hash
from ..telemetry.origin import current_origin
from .executions import Executions, Submitted, expect_stored
from .pending_confirmations import Decision, PendingConfirmation, PendingConfirmations
from .target import Target


class Confirmations:
    """The confirmations of one tenant that wait for a person."""

    def __init__(
        self,
        registry: Registry,
        executions: Executions,
        pending: PendingConfirmations,
        observer: Observer,
    ) -> None:
        self._registry = registry
        self._tenant = registry.tenant.name
        self._executions = executions
        self._pending = pending
        self._observer = observer

    def pending(self) -> Sequence[PendingConfirmation]:
        """Return those that nobody has decided and that can run still, oldest first."""
        present = {"", *(session.id for session in self._registry.list())}
        return [each for each in self._pending.waiting() if each.session_id in present]

    async def answer(
        self, confirmation_id: str, decision: Decision
    ) -> tuple[str, ExecutionLog] | None:
        """Run the code in its session, or decline it for good.

        Returns:
            The id of the session and the execution; None if it was declined.

        Raises:
            NotFound: it is unknown, or expired, or its client has confirmed it.
            Conflict: somebody else has decided it.
            as `Executions.accept`.
        """
        asked = self._pending.get(confirmation_id)
        asked.decision, asked.decided_by = decision, current_origin().user
        if decision == "approve":
            request = msgspec.structs.replace(asked.request, confirm=asked.token)
            target = (
                Target(asked.session_id, must_exist=True)
                if asked.session_id
                else Target(template=asked.template)
            )
            try:
                submitted = await self._run(asked, request, target)
            except BaseException:
                asked.decision, asked.decided_by = None, ""
                raise
            asked.execution = submitted.session_id, submitted.log
        self._observer(
            ConfirmationAnswered(
                self._tenant,
                asked.template,
                asked.session_id,
                code_hash(asked.request.code),
                decision,
                asked.decided_by,
            )
        )
        return asked.execution

    async def _run(
        self, asked: PendingConfirmation, request: ExecutionRequest, target: Target
    ) -> Submitted:
        if asked.internal_cell is None:
            return await self._executions.accept(request, target)
        session = await self._registry.resolve(asked.session_id)
        log = self._executions.submit(
            session, request, assessment=asked.assessment, internal_cell=asked.internal_cell
        )
        submitted = Submitted(session, log, session.id)
        await expect_stored(submitted)
        return submitted
