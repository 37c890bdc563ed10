"""The code interpreter: port 49999 of each sandbox."""

from __future__ import annotations

from .address import CODE_PORT, SANDBOX_ID
from .contexts import Contexts, OneContext, RestartContext
from .execute import Execute
from .handlers import SandboxCall
from .routing import SandboxRoute


class Health(SandboxCall):
    """`GET /health`."""

    async def get(self) -> None:
        await self.running_session()
        self.reply("OK")


ROUTES = [
    SandboxRoute(CODE_PORT, "/execute", Execute),
    SandboxRoute(CODE_PORT, "/contexts", Contexts),
    SandboxRoute(CODE_PORT, f"/contexts/(?P<context_id>{SANDBOX_ID})", OneContext),
    SandboxRoute(CODE_PORT, f"/contexts/(?P<context_id>{SANDBOX_ID})/restart", RestartContext),
    SandboxRoute(CODE_PORT, "/health", Health),
]
