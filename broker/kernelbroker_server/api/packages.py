"""Packages of a session over HTTP."""

from __future__ import annotations

from kernelbroker.protocol.messages import InstallRequest

from ..service import packages
from .content_negotiation import TAGS
from .executions import EXECUTION_OUTPUT, StreamingHandler
from .openapi import operation


class Packages(StreamingHandler):
    @operation({200: EXECUTION_OUTPUT}, body=InstallRequest)
    async def post(self, session_id: str) -> None:
        """Install packages for a session, as an execution whose output is the installer's.

        The `Accept` header selects the answer's form, as for a cell.
        """
        session = await self.tenant.sessions.resolve(session_id)
        asked = self.body_as(InstallRequest)
        async with self.until_disconnected():
            log = await packages.install(self.tenant.executions, session, asked)
            await self.answer(log, 0, TAGS)
