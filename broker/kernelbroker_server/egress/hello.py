"""The first words of a TLS client, as far as they name the server that it wants. Pure.

A tunnel's bytes are not for us to read, but who it is for is said in the clear. Formats: RFC 8446,
sections 4.1.2 and 5.1; RFC 6066, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_HELLO_BYTES = 16 * 1024
"""A ClientHello of today has 200 to 2,000."""
ALERT_UNRECOGNIZED_NAME = b"\x15\x03\x03\x00\x02\x02\x70"
"""What a server answers who is not the one that was asked for; clients name it in their errors."""

_RECORD_HEADER = 5
_MAX_RECORDS = 8
"""Enough for any client; many small ones would only make work."""
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME = 0
_HOST_NAME = 0
_ENCRYPTED = (0xFE0D, 0xFFCE)
"""Encrypted ClientHello and its forerunner: the name in the clear may be a mask."""


class BadHello(Exception):
    """It is not a TLS client that names its server; the message says what is amiss."""


class _Cut(Exception):
    """The bytes end before the message does."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise _Cut
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
    """The server's name in a ClientHello, or None while more bytes are needed.

    Raises:
        BadHello
    """
    message = _handshake(data)
    if message[:1] and message[0] != _CLIENT_HELLO:
        raise BadHello("the connection does not begin as TLS does")
    try:
        body = _Reader(message[1:]).vector(3)
    except _Cut:
        if len(data) >= MAX_HELLO_BYTES:
            raise BadHello("the TLS hello is too long") from None
        return None
    try:
        return _name_in(body)
    except _Cut:
        raise BadHello("the TLS hello is malformed") from None


def _handshake(data: bytes) -> bytes:
    """The content of the records, as far as they are here: a message may span several."""
    content = b""
    for _ in range(_MAX_RECORDS):
        if not data:
            return content
        header = data[:_RECORD_HEADER]
        if header[0] != _HANDSHAKE or (len(header) > 1 and header[1] != 3):
            raise BadHello("the connection does not begin as TLS does")
        if len(header) < _RECORD_HEADER:
            return content
        size = int.from_bytes(header[3:])
        if size == 0:
            raise BadHello("the TLS hello is malformed")
        content += data[_RECORD_HEADER : _RECORD_HEADER + size]
        data = data[_RECORD_HEADER + size :]
    if data:
        raise BadHello("the TLS hello is in too many pieces")
    return content


def _name_in(hello: _Reader) -> str:
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session
    hello.vector(2)  # ciphers
    hello.vector(1)  # compression
    names = []
    for kind, extension in _extensions(hello):
        if kind in _ENCRYPTED:
            raise BadHello("the TLS hello is encrypted (ECH), so nobody can tell whom it is for")
        if kind == _SERVER_NAME:
            entries = extension.vector(2)
            if entries.number(1) != _HOST_NAME:
                raise BadHello("the TLS hello names no server (SNI)")
            names.append(entries.vector(2))
            if not entries.done or not extension.done:
                raise BadHello("the TLS hello names more than one server")
    if not names:
        raise BadHello("the TLS hello names no server (SNI)")
    if len(names) > 1 or not hello.done:
        raise BadHello("the TLS hello is malformed")
    try:
        return names[0].rest().decode("ascii")
    except UnicodeDecodeError:
        raise BadHello("the TLS hello is malformed") from None


def _extensions(hello: _Reader) -> Iterator[tuple[int, _Reader]]:
    if hello.done:
        return
    extensions = hello.vector(2)
    while not extensions.done:
        yield extensions.number(2), extensions.vector(2)
