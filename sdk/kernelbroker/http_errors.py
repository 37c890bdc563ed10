"""Exceptions for the broker's answers: the status and body of an HTTP answer, or an error message."""

from __future__ import annotations

import msgspec

from .discovery import Address
from .protocol.codec import decode_json
from .protocol.errors import KernelBrokerError, Unauthorized, from_code
from .protocol.messages import ErrorBody, ErrorEnvelope

_CODES = {401: "unauthorized", 403: "unauthorized", 429: "too_many_requests", 503: "unavailable"}


def error_from_answer(address: Address, status: int, body: bytes) -> KernelBrokerError:
    """The exception for an HTTP status of 400 and above, or for another unexpected one."""
    try:
        error = decode_json(body, ErrorEnvelope).error
    except msgspec.MsgspecError:
        if status not in _CODES:
            return address.unreachable(f"HTTP {status}, and not from a kernelbroker")
        error = ErrorBody(code=_CODES[status], message=f"HTTP {status}.")
    return error_from_wire(address, error)


def error_from_wire(address: Address, error: ErrorBody) -> KernelBrokerError:
    """The exception for an error in the protocol's form."""
    if error.code == Unauthorized.code:
        return address.unauthorized(error.message, error.request_id)
    return from_code(
        error.code,
        error.message,
        request_id=error.request_id,
        retry_after=error.retry_after,
        findings=error.findings,
        confirmation=error.confirmation,
        expires_in=error.expires_in,
    )
