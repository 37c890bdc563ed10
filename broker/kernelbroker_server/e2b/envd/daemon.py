"""The routes of port 49983."""

from __future__ import annotations

from collections.abc import Sequence

from ..address import ENVD_PORT
from ..handlers import SandboxHandler
from ..routing import SandboxRoute
from . import filesystem_rpc, process_rpc
from .files_handler import FilesHandler
from .rpc import RpcHandler
from .watchers import Watchers


class HealthHandler(SandboxHandler):
    """GET answers 204 while the sandbox runs."""

    async def get(self) -> None:
        (await self.running_session()).expect_open()
        self.set_status(204)


def routes() -> Sequence[SandboxRoute]:
    """Return the routes, with the state of their own."""
    filesystem = {"methods": filesystem_rpc.methods(Watchers())}
    process = {"methods": process_rpc.METHODS}
    return [
        SandboxRoute(ENVD_PORT, "/health", HealthHandler),
        SandboxRoute(ENVD_PORT, "/files", FilesHandler),
        SandboxRoute(
            ENVD_PORT, "/filesystem[.]Filesystem/(?P<method>[A-Za-z]+)", RpcHandler, filesystem
        ),
        SandboxRoute(ENVD_PORT, "/process[.]Process/(?P<method>[A-Za-z]+)", RpcHandler, process),
    ]
