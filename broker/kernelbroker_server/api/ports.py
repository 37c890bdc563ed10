"""Servers that user code has started in a session's sandbox, at a path of the session."""

from __future__ import annotations

from kernelbroker.protocol.errors import BadRequest
from tornado.web import stream_request_body

from .port_proxy import PortProxy

_PARTS = len(["", "api", "v1", "sessions", "ID", "ports", "PORT", ""]) - 1


@stream_request_body
class Port(PortProxy):
    """Passes a request on to the server at a port; what follows the port in the path is for the server."""

    async def prepare(self) -> None:
        done = super().prepare()
        if done is not None:
            await done
        if self._finished or self.request.method not in self.SUPPORTED_METHODS:
            return
        port = int(self.path_kwargs["port"])
        if not 0 < port < 2**16:
            raise BadRequest("a port is a number from 1 to 65535")
        session = await self.tenant.sessions.resolve(self.path_kwargs["session_id"])
        # The rest of the path as it was sent: the server decides what an escape means.
        path = "/".join(self.request.path.split("/")[_PARTS:])
        query = f"?{self.request.query}" if self.request.query else ""
        await self.begin(session, port, f"/{path}{query}")

    async def _pass_on(self, session_id: str, port: str, path: str = "") -> None:  # noqa: ARG002
        await self.relay()

    get = head = post = put = patch = delete = options = _pass_on
