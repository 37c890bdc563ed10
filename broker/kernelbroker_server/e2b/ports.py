"""The other ports of a sandbox: servers that user code has started there."""

from __future__ import annotations

from kernelbroker.protocol.errors import Conflict
from tornado.web import stream_request_body

from ..api import credentials
from ..api.port_proxy import PortProxy
from ..service.ports import PortClosed
from .handlers import SandboxHandler
from .routing import SandboxRoute

_CREDENTIALS = ("X-API-Key", "X-Access-Token", "E2B-Traffic-Access-Token")
_BAD_GATEWAY = 502
"""What E2B answers if nothing listens at a port."""


@stream_request_body
class PortHandler(SandboxHandler, PortProxy):
    """Passes a request on to the server at the port."""

    async def prepare(self) -> None:
        done = super().prepare()
        if done is not None:
            await done
        if self._finished or self.request.method not in self.SUPPORTED_METHODS:
            return
        query = f"?{self.request.query}" if self.request.query else ""
        session = await self.session()
        await self.begin(session, self.address.port, f"{self.address.path}{query}")

    def authorization_is_for_server(self) -> bool:
        headers = self.request.headers
        by_header = any(name in headers for name in _CREDENTIALS)
        token = credentials.bearer_token(headers)
        return by_header and (not token or self.service.keyring.tenant_of(token) is None)

    async def _pass_on(self) -> None:
        await self.relay()

    get = head = post = put = patch = delete = options = _pass_on

    def error_status(self, error: BaseException | None, default: int) -> int:
        if isinstance(error, PortClosed):
            return _BAD_GATEWAY
        return 403 if isinstance(error, Conflict) else super().error_status(error, default)


ROUTES = [SandboxRoute(None, ".*", PortHandler)]
