"""Reads the server name (SNI) from a TLS ClientHello. No I/O.

The proxy cannot read what is inside a tunnel, but the ClientHello names the server in clear text. Formats:
RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_CLIENT_HELLO_BYTES = 16 * 1024
"""A usual ClientHello has 200 to 2,000 bytes."""
ALERT_UNRECOGNIZED_NAME = b"\x15\x03\x03\x00\x02\x02\x70"
"""The fatal alert `unrecognized_name`, which clients name in their error message."""

_RECORD_HEADER = 5
_MAX_RECORDS = 8
"""Enough for any client; more of them, and smaller, only cost processor time."""
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME = 0
_HOST_NAME = 0
_ENCRYPTED = (0xFE0D, 0xFFCE)
"""Encrypted ClientHello and its draft: the name in clear text may not be the real one."""


class InvalidClientHello(Exception):
    """These bytes are not a ClientHello that names exactly one server; the message says why."""


class _Incomplete(Exception):
    """The data ends before the message does."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise _Incomplete
        self._at += size
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size_of_length: int) -> _Reader:
        return _Reader(self.take(self.number(size_of_length)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    @property
    def done(self) -> bool:
        return self._at == len(self._data)


def server_name(data: bytes) -> str | None:
    """The server name in a ClientHello; None if more bytes are needed.

    Raises:
        InvalidClientHello
    """
    message = _handshake(data)
    if message[:1] and message[0] != _CLIENT_HELLO:
        raise InvalidClientHello("the connection does not start with a TLS handshake")
    try:
        body = _Reader(message[1:]).vector(3)
    except _Incomplete:
        if len(data) >= MAX_CLIENT_HELLO_BYTES:
            raise InvalidClientHello("the TLS hello is too long") from None
        return None
    try:
        return _name_in(body)
    except _Incomplete:
        raise InvalidClientHello("the TLS hello is malformed") from None


def _handshake(data: bytes) -> bytes:
    """The content of the complete records so far: a message may span several."""
    content = b""
    for _ in range(_MAX_RECORDS):
        if not data:
            return content
        header = data[:_RECORD_HEADER]
        if header[0] != _HANDSHAKE or (len(header) > 1 and header[1] != 3):
            raise InvalidClientHello("the connection does not start with a TLS handshake")
        if len(header) < _RECORD_HEADER:
            return content
        size = int.from_bytes(header[3:])
        if size == 0:
            raise InvalidClientHello("the TLS hello is malformed")
        content += data[_RECORD_HEADER : _RECORD_HEADER + size]
        data = data[_RECORD_HEADER + size :]
    if data:
        raise InvalidClientHello("the TLS hello is split into too many records")
    return content


def _name_in(hello: _Reader) -> str:
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session
    hello.vector(2)  # ciphers
    hello.vector(1)  # compression
    names = []
    for kind, extension in _extensions(hello):
        if kind in _ENCRYPTED:
            raise InvalidClientHello(
                "the TLS hello is encrypted (ECH), which hides the server name"
            )
        if kind == _SERVER_NAME:
            entries = extension.vector(2)
            if entries.number(1) != _HOST_NAME:
                raise InvalidClientHello("the TLS hello names no server (SNI)")
            names.append(entries.vector(2))
            if not entries.done or not extension.done:
                raise InvalidClientHello("the TLS hello names more than one server")
    if not names:
        raise InvalidClientHello("the TLS hello names no server (SNI)")
    if len(names) > 1 or not hello.done:
        raise InvalidClientHello("the TLS hello is malformed")
    try:
        return names[0].rest().decode("ascii")
    except UnicodeDecodeError:
        raise InvalidClientHello("the TLS hello is malformed") from None


def _extensions(hello: _Reader) -> Iterator[tuple[int, _Reader]]:
    if hello.done:
        return
    extensions = hello.vector(2)
    while not extensions.done:
        yield extensions.number(2), extensions.vector(2)
