"""Judging code without running it."""

from __future__ import annotations

from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.messages import AssessmentRequest

from ..sessions.policy import judged
from .base import ApiHandler


class Assess(ApiHandler):
    """POST /assess: the findings in code, whatever any policy makes of them."""

    async def post(self) -> None:
        asked = self.body_as(AssessmentRequest)
        limit = self.service.registry.limits.max_code_chars
        if len(asked.code) > limit:
            raise BadRequest(f"the code has {len(asked.code):,} characters; {limit:,} is the limit")
        self.reply(await judged(asked.code, asked.language))
