"""The message that a webhook gets, and its signature. No I/O.

The signature is that of Standard Webhooks (https://www.standardwebhooks.com), for which there are verifying
libraries in many languages: HMAC-SHA256 over id, timestamp and body.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Cause, Display, Event, Result, Stderr, Stdout

MAX_TEXT = 20_000
"""Characters of output that a message has; the middle of longer output is left out."""
_MAX_ERROR = 2_000
_SECRET_PREFIX = "whsec_"
_MIN_SECRET, _MAX_SECRET = 24, 64
"""Bytes, as Standard Webhooks has them."""


class ExecutionEnded(msgspec.Struct, kw_only=True):
    """An execution that has ended.

    Attributes:
        text: what it printed and the text of its displays, at most 20,000 characters.
        complete: whether `text` is all of it.
    """

    execution_id: str
    session_id: str
    success: bool
    error: str | None
    cause: Cause | None
    exit_code: int | None
    execution_time: float | None
    text: str
    complete: bool


class WebhookMessage(msgspec.Struct, kw_only=True):
    """The body of a request to a webhook. `timestamp` is when it was made, in UTC."""

    type: str = "execution.ended"
    timestamp: datetime
    data: ExecutionEnded


def message(session_id: str, execution_id: str, events: Iterable[Event], now: float) -> bytes:
    """Return the body for an execution whose last event is its result, as JSON."""
    text, result = [], None
    for event in events:
        match event:
            case Stdout(content=content) | Stderr(content=content):
                text.append(content)
            case Display(data={"text/plain": str(content)}):
                text.append(f"{content}\n")
            case Result():
                result = event
    assert result is not None, "it has ended"
    whole = "".join(text)
    shown = _without_middle(whole, MAX_TEXT)
    detail = result.error_detail
    return encode(
        WebhookMessage(
            timestamp=datetime.fromtimestamp(round(now, 3), UTC),
            data=ExecutionEnded(
                execution_id=execution_id,
                session_id=session_id,
                success=result.success,
                error=None if result.error is None else _without_middle(result.error, _MAX_ERROR),
                cause=None if detail is None else detail.cause,
                exit_code=result.exit_code,
                execution_time=result.execution_time,
                text=shown,
                complete=shown == whole and result.truncated is None,
            ),
        )
    )


def secret_key(secret: str) -> bytes:
    """Return the key of a secret, `whsec_` and base64. Raises ValueError, which does not show it."""
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not (secret.startswith(_SECRET_PREFIX) and _MIN_SECRET <= len(key) <= _MAX_SECRET):
        raise ValueError(
            f"must be whsec_ and the base64 of {_MIN_SECRET} to {_MAX_SECRET} random bytes: "
            'echo "whsec_$(openssl rand -base64 32)"'
        )
    return key


def signed_headers(key: bytes, message_id: str, now: float, body: bytes) -> dict[str, str]:
    """Return the headers that identify, date and sign a message.

    Args:
        message_id: the same for each attempt to deliver this message.
        now: seconds since the epoch, of this attempt.
    """
    timestamp = str(int(now))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature}",
    }


def _without_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    note = f"\n[{len(text) - limit:,} characters are left out]\n"
    half = (limit - len(note)) // 2
    return text[:half] + note + text[-half:]
