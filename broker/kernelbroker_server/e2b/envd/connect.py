"""The Connect protocol: framing, codes of errors, headers. No I/O. See connectrpc.com/docs/protocol."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Literal, NamedTuple, TypeAlias

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

from ..handlers import not_found

Code: TypeAlias = Literal[
    "canceled",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
]

STATUS: dict[Code, int] = {
    "canceled": 499,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}
"""The HTTP status of a unary call that fails."""

_CODES: dict[type[RequestError], Code] = {
    BadRequest: "invalid_argument",
    Unauthorized: "unauthenticated",
    NotFound: "not_found",
    MethodNotAllowed: "unimplemented",
    Conflict: "failed_precondition",
    ConfirmationRequired: "failed_precondition",
    PolicyRefused: "permission_denied",
    SessionGone: "unavailable",
    TooLarge: "resource_exhausted",
    TooManyRequests: "resource_exhausted",
    InternalError: "internal",
    Unavailable: "unavailable",
}
MAX_MESSAGE_BYTES = 4 * 1024**2
_HEAD = Struct("!BI")
_COMPRESSED, _END = 0x01, 0x02


class ConnectError(Exception):
    """A call fails with this code and message."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def encode(self) -> bytes:
        return json.dumps({"code": self.code, "message": self.message}).encode()


def connect_error(error: BaseException) -> ConnectError:
    """Translate an error. Unexpected ones reveal nothing."""
    match error:
        case ConnectError():
            return error
        case SessionGone():
            return ConnectError("unavailable", not_found(error.message))
        case RequestError():
            return ConnectError(_CODES.get(type(error), "internal"), error.message)
        case ProtocolError():
            return ConnectError("invalid_argument", str(error))
    return ConnectError("internal", "internal error; the broker's log has details")


class Form(NamedTuple):
    """How the messages of a call are encoded."""

    binary: bool
    streaming: bool

    @property
    def content_type(self) -> str:
        name = "proto" if self.binary else "json"
        return f"application/connect+{name}" if self.streaming else f"application/{name}"


_FORMS = {
    form.content_type: form
    for form in (Form(binary, streaming) for binary in (False, True) for streaming in (False, True))
}


def form_of(content_type: str) -> Form | None:
    """Return the form that a Content-Type header names; None for another protocol."""
    return _FORMS.get(content_type.partition(";")[0].strip().lower())


def timeout_of(header: str | None) -> float | None:
    """Return the seconds of a Connect-Timeout-Ms header; None if there is none. Raises ConnectError."""
    if not header:
        return None
    if not (header.isascii() and header.isdigit() and len(header) <= 10):
        raise ConnectError(
            "invalid_argument", "Connect-Timeout-Ms must be a number of at most 10 digits"
        )
    return int(header) / 1000


def envelope(message: bytes) -> bytes:
    """Frame a message of a stream."""
    return _HEAD.pack(0, len(message)) + message


def end_of_stream(error: ConnectError | None) -> bytes:
    """Frame the end of a stream."""
    end = b"{}" if error is None else b'{"error":' + error.encode() + b"}"
    return _HEAD.pack(_END, len(end)) + end


class Envelopes:
    """Takes a request's stream apart.

    Args:
        encoding: of compressed messages.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._gathered = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete. Raises ConnectError."""
        self._gathered += data
        while len(self._gathered) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(self._gathered)
            if size > MAX_MESSAGE_BYTES:
                raise _too_large()
            if len(self._gathered) < _HEAD.size + size:
                return
            message = bytes(self._gathered[_HEAD.size : _HEAD.size + size])
            del self._gathered[: _HEAD.size + size]
            if not flags & _END:
                yield decompress(message, self._encoding) if flags & _COMPRESSED else message

    def expect_end(self) -> None:
        """Raises ConnectError if a message is incomplete."""
        if self._gathered:
            raise ConnectError("invalid_argument", "the last message of the request is incomplete")


def decompress(message: bytes, encoding: str) -> bytes:
    """Decompress a message. Raises ConnectError."""
    if encoding in ("", "identity"):
        return message
    if encoding != "gzip":
        raise ConnectError(
            "unimplemented", f"messages are not compressed with {encoding!r}, only gzip"
        )
    unpack = zlib.decompressobj(wbits=31)
    try:
        data = unpack.decompress(message, MAX_MESSAGE_BYTES)
    except zlib.error as exc:
        raise ConnectError("invalid_argument", "the message is no valid gzip") from exc
    if unpack.unconsumed_tail:
        raise _too_large()
    if not unpack.eof:
        raise ConnectError("invalid_argument", "the message is no complete gzip")
    return data


def _too_large() -> ConnectError:
    return ConnectError("resource_exhausted", f"a message has at most {MAX_MESSAGE_BYTES:,} bytes")
