"""What all handlers share: the token, the request's id, JSON bodies, and errors as JSON."""

from __future__ import annotations

import hashlib
import http
import logging
import math
import re
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import (
    BadRequest,
    ConfirmationRequired,
    Conflict,
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

from ..backends.base import Backend
from ..pool.runner import Pool
from ..sessions.registries import Registries
from ..sessions.registry import Registry
from ..telemetry.facts import Observer, RequestEnded, nobody
from ..telemetry.logs import bind
from ..telemetry.metrics import Metrics
from ..tenants.keyring import Keyring
from .contract import methods_of

if TYPE_CHECKING:
    from .websocket import SessionSocket

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 2 * 1024**2
"""Of a JSON body or a WebSocket message; holds the longest code, fully escaped."""

_MAX_READ_BYTES = 16 * 1024**2
"""Of a body that is too large: a client that still sends when it is answered may not read why."""

_STATUS: dict[type[RequestError], int] = {
    BadRequest: 400,
    Unauthorized: 401,
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
    """What handlers work with."""

    registries: Registries
    pools: Mapping[str, Pool]
    backend: Backend
    keyring: Keyring
    version: str
    observer: Observer = nobody
    metrics: Metrics | None = None
    operator_tokens: tuple[str, ...] = ()
    allowed_origins: frozenset[str] = frozenset()
    websockets: set[SessionSocket] = field(default_factory=set)


class Authenticated(RequestHandler):
    """A request with an id of its own, whose token is checked before anything else.

    Attributes:
        registry: the sessions of whose token it is, and nobody else's.
    """

    service: Service
    request_id: str
    registry: Registry

    def initialize(self, service: Service) -> None:
        self.service = service
        given = self.request.headers.get("X-Request-ID", "")
        # Not in `prepare`, which an unknown method does not reach.
        self.request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)

    def prepare(self) -> Awaitable[None] | None:
        self.set_header("X-Request-ID", self.request_id)
        bind(request_id=self.request_id)
        self.authenticate()
        return None

    def authenticate(self) -> None:
        tenant = self.service.keyring.tenant_of(self.bearer())
        if tenant is None:
            raise Unauthorized("send a token of the broker's as 'Authorization: Bearer TOKEN'")
        self.registry = self.service.registries.of(tenant)
        bind(tenant=tenant.name)

    def bearer(self) -> str:
        """The token that is shown; empty if there is none."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def body_length(self) -> int | None:
        """As it was announced; None where only the body's end will tell. Raises BadRequest."""
        value = self.request.headers.get("Content-Length")
        if "Transfer-Encoding" in self.request.headers:
            if value is not None:  # Tornado says so as well, but only when it reads the body
                raise BadRequest("a body has a Content-Length or a Transfer-Encoding, not both")
            return None
        value = value or "0"
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise BadRequest("Content-Length is no number")
        return int(value)

    def on_finish(self) -> None:
        registry = getattr(self, "registry", None)
        route = self.settings["routes"].get(type(self), "other")
        method = self.request.method if self.request.method in self.SUPPORTED_METHODS else "other"
        self.service.observer(
            RequestEnded(
                None if registry is None else registry.tenant.name,
                str(method),
                route,
                self.get_status(),
                self.request.request_time(),
            )
        )

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        body = error_body(error, self.request_id)
        self.set_status(status_of(error, status_code))
        self.set_header("X-Request-ID", self.request_id)  # what `prepare` set was cleared
        self.set_header("Content-Type", "application/json")
        if body.retry_after is not None:
            self.set_header("Retry-After", str(max(1, math.ceil(body.retry_after))))
        if isinstance(error, Unauthorized):
            self.set_header("WWW-Authenticate", "Bearer")
        if status_code == 405:
            self.set_header("Allow", ", ".join(methods_of(type(self))))
        self.finish(encode({"error": body}))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if isinstance(value, RequestError | ProtocolError | HTTPError):
            logger.info("%s: %s", self.request.path, type(value).__name__)
        else:
            logger.error("%s failed", self.request.path, exc_info=(typ, value, tb))

    def reply(self, value: object, status: int = 200) -> None:
        """Finish with a value as JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(encode(value))


@stream_request_body
class ApiHandler(Authenticated):
    """A REST call. Its body is bounded while it is read."""

    def prepare(self) -> None:
        self._body = bytearray()
        super().prepare()
        if (self.body_length() or 0) > _MAX_READ_BYTES:
            raise TooLarge(f"a body has at most {MAX_BODY_BYTES:,} bytes")

    def data_received(self, chunk: bytes) -> None:
        if len(self._body) <= MAX_BODY_BYTES:
            self._body += chunk

    def body(self) -> bytes:
        """Raises TooLarge."""
        if len(self._body) > MAX_BODY_BYTES:
            raise TooLarge(f"a body has at most {MAX_BODY_BYTES:,} bytes")
        return bytes(self._body)

    def body_as(self, type_: type[T]) -> T:
        """The JSON body; an empty one is an empty object. Raises BadRequest, TooLarge."""
        try:
            return decode_as(self.body() or b"{}", type_)
        except ProtocolError as exc:
            raise BadRequest(f"the body does not fit: {exc}") from exc

    def idempotency_key(self) -> str | None:
        """Raises BadRequest."""
        key = self.request.headers.get("Idempotency-Key")
        if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
            raise BadRequest("an Idempotency-Key has 1 to 255 visible ASCII characters")
        return key

    def fingerprint(self) -> bytes:
        """Tells one request from another."""
        kind = self.request.headers.get("Content-Type", "")
        parts = (self.request.method or "", self.request.path, kind)
        return hashlib.sha256("\n".join(parts).encode() + b"\n" + self.body()).digest()


class UnknownPath(Authenticated):
    """Whatever no other handler answers."""

    def prepare(self) -> None:
        super().prepare()
        raise NotFound(f"there is nothing at {self.request.path}")


def status_of(error: BaseException | None, default: int) -> int:
    for type_, status in _STATUS.items():
        if isinstance(error, type_):
            return status
    return 400 if isinstance(error, ProtocolError) else default


def error_body(error: BaseException | None, request_id: str) -> ErrorBody:
    """An error as the protocol writes it; what was not foreseen says no more than its request's id."""
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
            message = "this path does not have that method; the Allow header names those it has"
            return ErrorBody(code=MethodNotAllowed.code, message=message, request_id=request_id)
        case HTTPError(status_code=status) if status < 500:
            reason = http.HTTPStatus(status).phrase
            return ErrorBody(code=BadRequest.code, message=reason, request_id=request_id)
    return ErrorBody(
        code=InternalError.code,
        message="a fault of the broker's own; its log has more under this request_id",
        request_id=request_id,
    )


def iso_time(timestamp: float) -> str:
    """Seconds since the epoch as ISO 8601, in UTC."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds")
