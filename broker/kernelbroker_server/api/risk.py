"""Assessing code without running it."""

from __future__ import annotations

from kernelbroker.protocol.findings import Assessment
from kernelbroker.protocol.messages import AssessmentRequest

from .base import ApiHandler
from .disconnect import Disconnectable
from .openapi import operation


class Assess(Disconnectable, ApiHandler):
    @operation({200: Assessment}, body=AssessmentRequest)
    async def post(self) -> None:
        """Assess code without running it. The answer has all findings, with any policy."""
        asked = self.body_as(AssessmentRequest)
        async with self.until_disconnected():
            assess = self.tenant.executions.assess
            self.reply(await assess(asked.code, asked.language, asked.params))
