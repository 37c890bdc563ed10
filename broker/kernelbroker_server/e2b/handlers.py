"""The base classes of E2B's handlers: their API keys and access tokens, and their form of errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import NotFound, SessionGone, Unauthorized
from kernelbroker.protocol.messages import ErrorBody

from ..api import credentials
from ..api.base import ApiHandler, Authenticated, Service, status_of
from ..sessions.session import Session
from ..telemetry.logs import bind
from ..tenants.tenant import Tenant
from .access import AccessTokens, tokens_of
from .address import SandboxAddress
from .messages import DEFAULT_TIMEOUT_S

_NOT_RUNNING = 502
"""What E2B answers for a sandbox that has ended. Their clients make it "the sandbox was not found"."""


def not_found(message: str) -> str:
    """Why a sandbox has ended, in the words by which E2B's clients know that it is not out of reach."""
    return message if "was not found" in message else f"the sandbox was not found: {message}"


class E2bHandler(Authenticated):
    """A request of E2B's clients. Errors are `{"code": STATUS, "message": ...}`."""

    client = "e2b"

    def authenticate(self) -> None:
        tenant = self.tenant_of_key()
        if tenant is None:
            raise Unauthorized("E2B_API_KEY must be a token of this broker")
        self.identify(tenant)

    def tenant_of_key(self) -> Tenant | None:
        """Return the tenant of the API key, or of the token, in the headers; None if it is not valid."""
        headers = self.request.headers
        key = headers.get("X-API-Key") or credentials.bearer_token(headers)
        found = (self.service.keyring.tenant_of(token) for token in tokens_of(key) if token)
        return next((tenant for tenant in found if tenant is not None), None)

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
        self.identify(tenant)
        bind(session_id=self.address.sandbox_id)

    async def session(self) -> Session:
        """Return the sandbox's session, which may be asleep. Raises SessionGone, also if it never was."""
        gone = f"the sandbox {self.address.sandbox_id} was not found"
        try:
            session = await self.tenant.sessions.resolve(self.address.sandbox_id)
        except NotFound as exc:
            raise SessionGone(gone) from exc
        if session.session is not None:
            raise SessionGone(gone)  # a context of a sandbox is none
        if (
            session.sleeping.is_asleep
        ):  # its time may be over; the use that wakes it gives it some more
            seconds = min(DEFAULT_TIMEOUT_S, session.limits.max_lifetime)
            self.tenant.sessions.set_lifetime(session, seconds, only_longer=True)
        return session

    async def running_session(self) -> Session:
        """Return the sandbox's session, if it is awake. Raises SessionGone."""
        session = await self.session()
        if session.sleeping.is_asleep:
            raise SessionGone(f"the sandbox {self.address.sandbox_id} is paused")
        return session

    def opener_of(self, tenant: str) -> Tenant:
        """Return a tenant, as the user who opened the sandbox: an access token names no other one."""
        caller = self.service.keyring.tenants[tenant]
        try:
            session = self.service.tenants.of(caller).registry.get(self.address.sandbox_id)
        except (NotFound, SessionGone):
            return caller  # the request will be refused
        return replace(caller, user=session.origin.user)

    def encode_error(self, status: int, body: ErrorBody) -> bytes:
        if body.code == SessionGone.code:
            body = msgspec.structs.replace(body, message=not_found(body.message))
        return super().encode_error(status, body)

    def error_status(self, error: BaseException | None, default: int) -> int:
        return _NOT_RUNNING if isinstance(error, SessionGone) else status_of(error, default)

    def _tenant_of_access_token(self) -> Tenant | None:
        headers = self.request.headers
        for name in ("X-Access-Token", "E2B-Traffic-Access-Token"):
            tenant = self.access.tenant_of(headers.get(name, ""), self.address.sandbox_id)
            if tenant is not None:
                return self.opener_of(tenant)
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
