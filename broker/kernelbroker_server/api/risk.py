"""Judging code without running it."""

from __future__ import annotations

from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.findings import Assessment
from kernelbroker.protocol.messages import AssessmentRequest

from .base import ApiHandler
from .contract import operation


class Assess(ApiHandler):
    @operation({200: Assessment}, body=AssessmentRequest)
    async def post(self) -> None:
        """Judge code without running it: the findings, whatever any policy makes of them."""
        asked = self.body_as(AssessmentRequest)
        limit = self.registry.limits.max_code_chars
        if len(asked.code) > limit:
            raise BadRequest(f"the code has {len(asked.code):,} characters; {limit:,} is the limit")
        self.reply(await self.registry.assess(asked.code, asked.language))
