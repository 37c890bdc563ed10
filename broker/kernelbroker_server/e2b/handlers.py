"""The base classes of E2B's handlers: their API keys and access tokens, and their form of errors."""

from __future__ import annotations

from typing import Any

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import NotFound, SessionGone, Unauthorized
from kernelbroker.protocol.messages import ErrorBody

from ..api import credentials
from ..api.base import ApiHandler, Authenticated, Service, status_of
from ..sessions.session import Session
from ..telemetry.logs import bind
from ..tenants.tenant import Tenant
from .access import AccessTokens
from .address import SandboxAddress

_NOT_RUNNING = 502
"""What E2B answers for a sandbox that has ended. Their clients make it "the sandbox was not found"."""


class E2bHandler(Authenticated):
    """A request of E2B's clients. Errors are `{"code": STATUS, "message": ...}`."""

    def authenticate(self) -> None:
        tenant = self.tenant_of_key()
        if tenant is None:
            raise Unauthorized("E2B_API_KEY must be a token of this broker")
        self.tenant = self.service.tenants.of(tenant)
        bind(tenant=tenant.name)

    def tenant_of_key(self) -> Tenant | None:
        """Return the tenant of the API key, or of the token, in the headers; None if it is not valid."""
        headers = self.request.headers
        key = headers.get("X-API-Key") or credentials.bearer_token(headers)
        return self.service.keyring.tenant_of(key) if key else None

    def encode_error(self, status: int, body: ErrorBody) -> bytes:
        return encode({"code": status, "message": body.message, "request_id": body.request_id})


class E2bCall(E2bHandler, ApiHandler):
    """A call with a bounded body."""


class UnknownE2bPath(E2bHandler):
    """A path of the control plane that no other handler answers."""

    def prepare(self) -> Any:
        super().prepare()
        if not self._finished:
            raise NotFound(f"this broker has no path {self.request.path} of E2B's API")


class SandboxHandler(E2bHandler):
    """A request to a port of a sandbox.

    Attributes:
        address: the sandbox and its port.
    """

    address: SandboxAddress

    def initialize(self, service: Service, access: AccessTokens) -> None:  # type: ignore[override]
        super().initialize(service)
        self.access = access
        self.address = self.request.sandbox_address  # type: ignore[attr-defined]

    def authenticate(self) -> None:
        """Set `tenant`, by an access token of the sandbox, or by an API key. Raises Unauthorized."""
        tenant = self.tenant_of_key() or self._tenant_of_access_token()
        if tenant is None:
            raise Unauthorized(
                f"this is no access token of sandbox {self.address.sandbox_id}: connect to it again"
            )
        self.tenant = self.service.tenants.of(tenant)
        bind(tenant=tenant.name, session_id=self.address.sandbox_id)

    async def session(self) -> Session:
        """Return the sandbox's session. Raises SessionGone, also if it never was."""
        try:
            return await self.tenant.sessions.resolve(self.address.sandbox_id)
        except NotFound as exc:
            raise SessionGone(f"the sandbox {self.address.sandbox_id} was not found") from exc

    def error_status(self, error: BaseException | None, default: int) -> int:
        return _NOT_RUNNING if isinstance(error, SessionGone) else status_of(error, default)

    def _tenant_of_access_token(self) -> Tenant | None:
        headers = self.request.headers
        for name in ("X-Access-Token", "E2B-Traffic-Access-Token"):
            tenant = self.access.tenant_of(headers.get(name, ""), self.address.sandbox_id)
            if tenant is not None:
                return self.service.keyring.tenants[tenant]
        return None


class SandboxCall(SandboxHandler, ApiHandler):
    """A request to a port of a sandbox, with a bounded body."""


class UnknownSandboxPath(SandboxHandler):
    """A path of a sandbox that no other handler answers."""

    async def prepare(self) -> None:
        super().prepare()
        await self.session()
        raise NotFound(
            f"nothing answers at port {self.address.port}, path {self.address.path} of a sandbox"
        )
