"""The code interpreter: port 49999 of each sandbox."""

from __future__ import annotations

from .address import CODE_PORT
from .execute import Execute
from .handlers import SandboxCall
from .routing import SandboxRoute


class Health(SandboxCall):
    """`GET /health`."""

    async def get(self) -> None:
        await self.session()
        self.reply("OK")


ROUTES = [
    SandboxRoute(CODE_PORT, "/execute", Execute),
    SandboxRoute(CODE_PORT, "/health", Health),
]
