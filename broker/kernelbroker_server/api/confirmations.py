"""Confirmations over HTTP: code that a policy holds back, for people who decide about it."""

from __future__ import annotations

import msgspec
from kernelbroker.protocol.messages import ExecutionInfo
from msgspec import convert

from ..service.pending_confirmations import Decision
from .base import ApiHandler
from .descriptions import ConfirmationInfo, confirmation_info, execution_fields
from .openapi import operation
from .other_brokers import items_elsewhere


class ConfirmationList(msgspec.Struct, kw_only=True):
    confirmations: list[ConfirmationInfo]


class ConfirmationAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`approve` runs the code in its session, `decline` refuses it for good."""

    answer: Decision


class AnsweredConfirmation(msgspec.Struct, kw_only=True):
    """`execution` is the one that was started; null if the code was declined."""

    answer: Decision
    execution: ExecutionInfo | None = None


class Confirmations(ApiHandler):
    @operation({200: ConfirmationList})
    async def get(self) -> None:
        """List the code that waits for a confirmation, oldest first."""
        own = [confirmation_info(each) for each in self.tenant.confirmations.pending()]
        others = await items_elsewhere(self.service.cluster, self.request, "confirmations")
        found = [*own, *(convert(each, ConfirmationInfo) for each in others)]
        self.reply(ConfirmationList(confirmations=sorted(found, key=lambda each: each.asked_at)))


class OneConfirmation(ApiHandler):
    @operation({200: AnsweredConfirmation}, body=ConfirmationAnswer)
    async def post(self, confirmation: str) -> None:
        """Decide about code that waits: run it, or decline it."""
        answer = self.body_as(ConfirmationAnswer).answer
        started = await self.tenant.confirmations.answer(confirmation, answer)
        info = None
        if started is not None:
            session_id, log = started
            info = ExecutionInfo(**execution_fields(log, session_id))
        self.reply(AnsweredConfirmation(answer=answer, execution=info))
