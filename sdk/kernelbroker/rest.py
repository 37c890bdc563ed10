"""The few plain HTTP calls of the SDK, through the standard library, in a thread.

Also what an HTTP answer that is no success means, which the WebSocket's handshake needs as well. No
proxies are used: a broker is one's own, and mostly on this machine.
"""

from __future__ import annotations

import asyncio
import http.client
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .discovery import Address
from .protocol.errors import KernelBrokerError, Unauthorized, from_code
from .protocol.messages import ErrorBody

MAX_BODY = 16 * 2**20
_CODES = {401: "unauthorized", 403: "unauthorized", 429: "too_many_requests", 503: "unavailable"}


class _Refusal(msgspec.Struct):
    error: ErrorBody


async def call(
    address: Address, method: str, path: str, timeout: float, body: bytes | None = None
) -> Any:
    """The JSON that the broker answers; None where the answer has no body. `body` is JSON as well.

    Raises:
        ConnectionFailed: no answer within `timeout` seconds, or not a broker's.
        RequestError: the broker refused.
    """
    try:
        status, answer = await asyncio.to_thread(_call, address, method, path, timeout, body)
    except (OSError, http.client.HTTPException) as exc:
        raise address.unreachable(exc) from exc
    if status >= 400:
        raise refusal(address, status, answer)
    try:
        return msgspec.json.decode(answer) if answer else None
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise address.unreachable(f"{path} answered with something else than JSON") from exc


def _call(
    address: Address, method: str, path: str, timeout: float, body: bytes | None
) -> tuple[int, bytes]:
    connection = connection_to(address, timeout)
    try:
        connection.request(method, urlsplit(address.url).path + path, body, address.headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_BODY)
    finally:
        connection.close()


def connection_to(address: Address, timeout: float) -> http.client.HTTPConnection:
    """A connection to the broker, made by the first request."""
    url = urlsplit(address.url)
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return connect(url.hostname or "", url.port, timeout=timeout)


def refusal(address: Address, status: int, body: bytes) -> KernelBrokerError:
    """The error for an HTTP answer of 400 and above, or of another status that nobody asked for."""
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeError):
        if status not in _CODES:
            return address.unreachable(f"HTTP {status}, and not from a kernelbroker")
        error = ErrorBody(code=_CODES[status], message=f"HTTP {status}.")
    return from_wire(address, error)


def from_wire(address: Address, error: ErrorBody) -> KernelBrokerError:
    """The exception for an error that the broker told."""
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
