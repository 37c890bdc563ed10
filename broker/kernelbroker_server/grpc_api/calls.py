"""One call of gRPC: its tenant and session from the metadata, errors as statuses, telemetry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

import grpc
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    InternalError,
    NotFound,
    RequestError,
    SessionGone,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)

from ..service.tenant_service import TenantService, TenantServices
from ..sessions.session import Session
from ..telemetry.events import Observer, RequestEnded
from ..telemetry.logs import bind
from ..telemetry.origin import set_origin
from ..tenants.keyring import Keyring

logger = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_SANDBOX_ID = "sandbox-id"
_CODE = "kernelbroker-code"
_RETRY_AFTER = "retry-after"
_STATUS: Mapping[type[RequestError], tuple[grpc.StatusCode, int]] = {
    BadRequest: (grpc.StatusCode.INVALID_ARGUMENT, 400),
    Unauthorized: (grpc.StatusCode.UNAUTHENTICATED, 401),
    Forbidden: (grpc.StatusCode.PERMISSION_DENIED, 403),
    NotFound: (grpc.StatusCode.NOT_FOUND, 404),
    Conflict: (grpc.StatusCode.FAILED_PRECONDITION, 409),
    SessionGone: (grpc.StatusCode.NOT_FOUND, 410),
    TooLarge: (grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
    TooManyRequests: (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    InternalError: (grpc.StatusCode.INTERNAL, 500),
    Unavailable: (grpc.StatusCode.UNAVAILABLE, 503),
}
"""The status of each error, and that of HTTP, for metrics and the audit log."""
_CANCELLED = 499


class Calls:
    """Begins and ends calls."""

    def __init__(self, tenants: TenantServices, keyring: Keyring, observer: Observer) -> None:
        self._tenants = tenants
        self._keyring = keyring
        self._observer = observer

    @contextlib.asynccontextmanager
    async def call(
        self, context: Context, method: str
    ) -> AsyncIterator[tuple[TenantService, Session]]:
        """Yield the tenant of the call's token, and the session that the call names.

        An error in the block becomes the status of the call.
        """
        started_at, status, tenant = time.monotonic(), 200, None
        request_id = secrets.token_hex(8)
        bind(request_id=request_id)
        try:
            metadata = _metadata(context)
            caller = self._keyring.tenant_of(_token(metadata))
            if caller is None:
                raise Unauthorized("send a token of this broker as the metadata 'authorization'")
            tenant = self._tenants.of(caller)
            bind(tenant=caller.name)
            set_origin("grpc", caller.user)
            if not (sandbox_id := metadata.get(_SANDBOX_ID)):
                raise BadRequest(f"name the session in the metadata '{_SANDBOX_ID}'")
            yield tenant, await tenant.sessions.resolve(sandbox_id)
        except RequestError as exc:
            code, status = _status_of(exc)
            await _abort(context, code, exc, request_id)
        except asyncio.CancelledError:
            status = _CANCELLED
            raise
        except Exception as exc:
            if isinstance(exc, grpc.aio.AbortError):
                raise
            status = 500
            logger.exception("%s failed", method)
            error = InternalError("internal error; the broker's log has details")
            await _abort(context, grpc.StatusCode.INTERNAL, error, request_id)
        finally:
            seconds = time.monotonic() - started_at
            name = None if tenant is None else tenant.name
            self._observer(RequestEnded(name, "GRPC", f"/grpc/{method}", status, seconds))


def _metadata(context: Context) -> dict[str, str]:
    """The texts of a call's metadata; a repeated key has its last value."""
    found = context.invocation_metadata() or ()
    return {str(key): value for key, value in found if isinstance(value, str)}


def _token(metadata: Mapping[str, str]) -> str:
    scheme, _, token = metadata.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _status_of(error: RequestError) -> tuple[grpc.StatusCode, int]:
    for kind, found in _STATUS.items():
        if isinstance(error, kind):
            return found
    return grpc.StatusCode.FAILED_PRECONDITION, 409


async def _abort(
    context: Context, code: grpc.StatusCode, error: RequestError, request_id: str
) -> None:
    trailing: tuple[tuple[str, str], ...] = ((_CODE, error.code), ("x-request-id", request_id))
    if error.retry_after is not None:
        trailing += ((_RETRY_AFTER, f"{error.retry_after:g}"),)
    # A status message is sent in a header.
    message = " ".join(error.message[:2_000].encode("utf-8", "replace").decode().split("\n"))
    await context.abort(code, message, trailing)
