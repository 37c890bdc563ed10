"""The base classes of handlers: authentication, request ids, JSON bodies, and errors as JSON."""

from __future__ import annotations

import hashlib
import http
import logging
import math
import re
import secrets
import time
from asyncio import Future
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import (
    BadRequest,
    ConfirmationRequired,
    Conflict,
    Forbidden,
    InternalError,
    MethodNotAllowed,
    NotFound,
    PolicyRefused,
    ProtocolError,
    RequestError,
    SessionGone,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from kernelbroker.protocol.messages import ErrorBody
from tornado.web import HTTPError, RequestHandler, stream_request_body

from ..backends.backend_set import BackendSet
from ..pool.runner import Pool
from ..service.idempotency import IdempotencyKey
from ..service.operations import Operations
from ..service.tenant_service import TenantService, TenantServices
from ..sessions.store import EventStore
from ..supervisor import Supervisor
from ..telemetry.events import Observer, RequestEnded, ignore_event
from ..telemetry.logs import bind, bound_ids
from ..telemetry.metrics import Metrics
from ..telemetry.origin import set_origin
from ..telemetry.traces import valid_traceparent
from ..tenants.keyring import Keyring
from ..tenants.tenant import Tenant
from . import cors, credentials
from .credentials import Tickets
from .disconnect import ClientDisconnected
from .live import LiveTenants
from .open_websocket import OpenWebSocket
from .openapi import methods_of
from .other_brokers import OtherBrokers
from .server import UnauthenticatedConnections
from .unread_bodies import UnreadBodies

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 2 * 1024**2
"""Of a JSON body or a WebSocket message. The longest code fits, fully escaped."""

_MAX_DISCARDED_BYTES = 16 * 1024**2
"""Of a body that is read although it is too large: a client that still sends would see a reset."""

_STATUS: dict[type[RequestError], int] = {
    BadRequest: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    Conflict: 409,
    ConfirmationRequired: 409,
    PolicyRefused: 422,
    SessionGone: 410,
    TooLarge: 413,
    TooManyRequests: 429,
    InternalError: 500,
    Unavailable: 503,
}
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """The objects that handlers use."""

    tenants: TenantServices
    store: EventStore
    pools: Mapping[str, Pool]
    backends: BackendSet
    keyring: Keyring
    version: str
    supervisor: Supervisor = field(default_factory=Supervisor)
    observer: Observer = ignore_event
    metrics: Metrics | None = None
    operator_tokens: tuple[str, ...] = ()
    allowed_origins: frozenset[str] = frozenset()
    tickets: Tickets = field(default_factory=Tickets)
    operations: Operations | None = None
    live: LiveTenants = field(default_factory=LiveTenants)
    unauthenticated: UnauthenticatedConnections = field(default_factory=UnauthenticatedConnections)
    unread_bodies: UnreadBodies = field(default_factory=UnreadBodies)
    started_at: float = field(default_factory=time.monotonic)
    websockets: set[OpenWebSocket] = field(default_factory=set)
    cluster: OtherBrokers | None = None


@stream_request_body
class Authenticated(RequestHandler):
    """A request with an id. Its token is checked before its body is read.

    Attributes:
        tenant: the use cases of the tenant that the token belongs to.
        caller: the tenant, with the token's name and right.
        client: the kind of client that requests come from, unless they say so themselves.
    """

    requires_token = True
    client = "rest"
    service: Service
    request_id: str
    tenant: TenantService
    caller: Tenant

    def initialize(self, service: Service) -> None:
        self.service = service
        given = self.request.headers.get("X-Request-ID", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        self._set_own_headers()

    def prepare(self) -> Awaitable[None] | None:
        bind(request_id=self.request_id)
        if traceparent := valid_traceparent(self.request.headers.get("traceparent")):
            bind(traceparent=traceparent)
        if self.service.allowed_origins and cors.is_preflight(
            self.request.method, self.request.headers
        ):
            self._answer_preflight()
        elif self.requires_token:
            self.authenticate()
            connection: Any = self.request.connection
            self.service.unauthenticated.discard(connection.stream)
        return None

    def authenticate(self) -> None:
        """Set `tenant`. Raises Unauthorized."""
        headers = self.request.headers
        if ticket := credentials.ticket(headers):
            caller = self.service.tickets.redeem(ticket)
        else:
            caller = self.service.keyring.tenant_of(self.given_token())
        if caller is None:
            why = self.service.keyring.refusal_of(self.given_token())
            raise Unauthorized(f"{why} (it is sent as 'Authorization: Bearer TOKEN')")
        self.identify(caller)

    def identify(self, caller: Tenant) -> None:
        """The request comes from this tenant. Called by `authenticate`."""
        self.caller = caller
        self.tenant = self.service.tenants.of(caller)
        bind(tenant=caller.name)
        set_origin(credentials.client_of(self.request.headers, self.client), caller.user)

    def given_token(self) -> str:
        """Return the client's token; "" if none. Other protocols than the native one override this."""
        return credentials.bearer_token(self.request.headers)

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Called by Tornado for a WebSocket."""
        return credentials.choose_subprotocol(subprotocols)

    def _set_own_headers(self) -> None:
        self.set_header("X-Request-ID", self.request_id)
        headers = cors.response_headers(self.request.headers, self.service.allowed_origins)
        for name, value in headers.items():
            self.set_header(name, value)

    def _answer_preflight(self) -> None:
        for name, value in cors.preflight_headers(methods_of(type(self))).items():
            self.set_header(name, value)
        self.set_status(204)
        self.finish()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Discard the body. Handlers that take one override this."""

    def body_length(self) -> int | None:
        """Return the Content-Length; None for a chunked body. Raises BadRequest."""
        value = self.request.headers.get("Content-Length")
        if "Transfer-Encoding" in self.request.headers:
            if value is not None:  # Tornado checks this as well, but not before it reads the body
                raise BadRequest("a body has a Content-Length or a Transfer-Encoding, not both")
            return None
        value = value or "0"
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise BadRequest("the Content-Length header is invalid: it must be a number of bytes")
        return int(value)

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> Future[None]:
        connection = self.request.connection
        assert connection is not None
        if connection in self.service.unread_bodies:
            self.set_header("Connection", "close")  # since Tornado will close it
        return super().finish(chunk)

    def on_finish(self) -> None:
        tenant = getattr(self, "tenant", None)
        route = self.settings["routes"].get(type(self), "other")
        method = self.request.method if self.request.method in self.SUPPORTED_METHODS else "other"
        self.service.observer(
            RequestEnded(
                None if tenant is None else tenant.name,
                str(method),
                route,
                self.get_status(),
                self.request.request_time(),
                bound_ids().get("traceparent"),
            )
        )

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        body = error_body(error, self.request_id)
        self.set_status(self.error_status(error, status_code))
        self._set_own_headers()  # Tornado has cleared the headers
        self.set_header("Content-Type", "application/json")
        if body.retry_after is not None:
            self.set_header("Retry-After", str(max(1, math.ceil(body.retry_after))))
        if isinstance(error, Unauthorized):
            self.set_header("WWW-Authenticate", self.challenge())
        if status_code == 405:
            self.set_header("Allow", ", ".join(methods_of(type(self))))
        self.finish(self.encode_error(self.get_status(), body))

    def error_status(self, error: BaseException | None, default: int) -> int:
        """Return the status for an error. Other protocols than the native one may override this."""
        return status_of(error, default)

    def challenge(self) -> str:
        """Return how a client without a valid token can authenticate."""
        return "Bearer"

    def encode_error(self, status: int, body: ErrorBody) -> bytes:  # noqa: ARG002
        """Return the answer's body for an error. Other protocols than the native one override this."""
        return encode({"error": body})

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if isinstance(value, RequestError | ProtocolError | HTTPError | ClientDisconnected):
            logger.info("%s: %s", self.request.path, type(value).__name__)
        else:
            logger.error("%s failed", self.request.path, exc_info=(typ, value, tb))

    def reply(self, value: object, status: int = 200) -> None:
        """Finish with a value as JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(encode(value))


class ApiHandler(Authenticated):
    """A REST call with a bounded body."""

    def prepare(self) -> None:
        self._body = bytearray()
        super().prepare()
        if (self.body_length() or 0) > _MAX_DISCARDED_BYTES:
            raise TooLarge(f"a body has at most {MAX_BODY_BYTES:,} bytes")

    def data_received(self, chunk: bytes) -> None:
        if len(self._body) <= MAX_BODY_BYTES:
            self._body += chunk

    def body(self) -> bytes:
        """Return the body. Raises TooLarge."""
        if len(self._body) > MAX_BODY_BYTES:
            raise TooLarge(f"a body has at most {MAX_BODY_BYTES:,} bytes")
        return bytes(self._body)

    def body_as(self, type_: type[T]) -> T:
        """Decode the JSON body. An empty body counts as `{}`. Raises BadRequest, TooLarge."""
        try:
            return decode_as(self.body() or b"{}", type_)
        except ProtocolError as exc:
            raise BadRequest(f"the body is invalid: {exc}") from exc

    def idempotency_key(self) -> IdempotencyKey | None:
        """The client's key for this request. Raises BadRequest."""
        key = self.request.headers.get("Idempotency-Key")
        if key is None:
            return None
        if not _IDEMPOTENCY_KEY.fullmatch(key):
            raise BadRequest("an Idempotency-Key has 1 to 255 visible ASCII characters")
        kind = self.request.headers.get("Content-Type", "")
        head = "\n".join((self.request.method or "", self.request.path, kind))
        return IdempotencyKey(key, hashlib.sha256(head.encode() + b"\n" + self.body()).digest())


class UnknownPath(Authenticated):
    """A path that no other handler answers."""

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            raise NotFound(f"this broker has no path {self.request.path}; see /api/v1/openapi.json")


def status_of(error: BaseException | None, default: int) -> int:
    for type_, status in _STATUS.items():
        if isinstance(error, type_):
            return status
    return 400 if isinstance(error, ProtocolError) else default


def error_body(error: BaseException | None, request_id: str) -> ErrorBody:
    """Return an error as the protocol defines it. Unexpected errors reveal only the request's id."""
    match error:
        case RequestError():
            return ErrorBody(
                code=error.code,
                message=error.message,
                request_id=request_id,
                retry_after=error.retry_after,
                findings=error.findings,
                confirmation=error.confirmation,
                expires_in=error.expires_in,
            )
        case ProtocolError():
            return ErrorBody(code=BadRequest.code, message=str(error), request_id=request_id)
        case HTTPError(status_code=405):
            message = "this path does not support the method; see the Allow header"
            return ErrorBody(code=MethodNotAllowed.code, message=message, request_id=request_id)
        case HTTPError(status_code=status) if status < 500:
            reason = http.HTTPStatus(status).phrase
            return ErrorBody(code=BadRequest.code, message=reason, request_id=request_id)
    return ErrorBody(
        code=InternalError.code,
        message="internal error; the broker's log has details under this request_id",
        request_id=request_id,
    )
