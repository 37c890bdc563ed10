"""The Tornado handler of `/mcp`: who may ask, from where, and how much.

What it refuses itself is answered as JSON-RPC errors, like all else on this path.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import TooLarge
from kernelbroker.protocol.messages import ErrorBody
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from tornado.web import HTTPError

from ..api.base import Authenticated, Service
from .asgi import AsgiExchange
from .endpoint import TENANT_KEY, USER_KEY, McpEndpoint
from .resource_metadata import WELL_KNOWN

MAX_BODY_BYTES = 4 * 1024**2
"""Of one message; the longest code and a file of some megabytes fit."""
_MAX_DISCARDED_BYTES = 15 * 1024**2
"""Of a body that is read although it is too large, so that its sender gets the answer."""
_INVALID_REQUEST, _INTERNAL_ERROR = -32600, -32603
_ADVICE = {
    403: "web pages of this origin may not use this server; its operator can name it in allowed_origins",
    421: "this server does not answer for this host name; its operator can name it in mcp.allowed_hosts",
}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class McpHandler(Authenticated):
    """Passes requests to an endpoint.

    Args (of `initialize`):
        hosts: the host names that a request may name; all if empty. This keeps web pages out whose
            name was rebound to the broker's address.
    """

    def initialize(self, service: Service, endpoint: McpEndpoint, hosts: Collection[str]) -> None:  # type: ignore[override]
        super().initialize(service)
        self._endpoint = endpoint
        self._hosts = hosts
        self._body = bytearray()
        self._exchange: AsgiExchange | None = None

    def prepare(self) -> None:
        host = urlsplit(f"//{self.request.host}").hostname or ""
        if self._hosts and host not in self._hosts:
            raise HTTPError(421)
        origin = self.request.headers.get("Origin")
        if origin is not None and not self._is_allowed(origin):
            raise HTTPError(403)
        super().prepare()
        if (self.body_length() or 0) > _MAX_DISCARDED_BYTES:
            raise TooLarge(f"a message has at most {MAX_BODY_BYTES:,} bytes")

    def data_received(self, chunk: bytes) -> None:
        if len(self._body) <= MAX_BODY_BYTES:
            self._body += chunk

    async def post(self) -> None:
        await self._serve()

    async def get(self) -> None:
        await self._serve()

    async def delete(self) -> None:
        await self._serve()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._exchange is not None:
            self._exchange.disconnected()

    async def _serve(self) -> None:
        if len(self._body) > MAX_BODY_BYTES:
            raise TooLarge(f"a message has at most {MAX_BODY_BYTES:,} bytes")
        connection: Any = self.request.connection
        connection.stream.set_nodelay(True)
        # The SDK serves a connection of the older revisions only to the one who opened it.
        user = AuthenticatedUser(AccessToken(token="", client_id=self.tenant.name, scopes=[]))
        scope = {"user": user, TENANT_KEY: self.tenant, USER_KEY: self.caller.user}
        self._exchange = AsgiExchange(self, bytes(self._body), scope)
        self._body.clear()
        await self._exchange.run(self._endpoint.application)

    def _is_allowed(self, origin: str) -> bool:
        own = f"{self.request.protocol}://{self.request.host}"
        return origin.lower() in (own.lower(), *self.service.allowed_origins)

    def challenge(self) -> str:
        if self.service.keyring.jwt is None:
            return super().challenge()
        own = f"{self.request.protocol}://{self.request.host}"
        return f'Bearer resource_metadata="{own}{WELL_KNOWN}{self._endpoint.path}"'

    def encode_error(self, status: int, body: ErrorBody) -> bytes:
        error = {
            "code": _INTERNAL_ERROR if status >= 500 else _INVALID_REQUEST,
            "message": _ADVICE.get(status, body.message),
            "data": {"code": body.code, "request_id": self.request_id},
        }
        return encode({"jsonrpc": "2.0", "id": None, "error": error})


def allowed_hosts(host: str, *, on_loopback: bool, named: Collection[str]) -> frozenset[str]:
    """Return the host names that requests may name.

    Args:
        host: the address that the broker listens on.
        on_loopback: whether that is a loopback address.
        named: further names, by the operator.

    Returns:
        Nothing, for all names, if the broker listens on other addresses and the operator named none.
    """
    if not on_loopback and not named:
        return frozenset()
    return frozenset({*_LOOPBACK, host.strip("[]"), *(each.lower() for each in named)})
