"""The server name in a TLS ClientHello."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.egress.client_hello import (
    MAX_CLIENT_HELLO_BYTES,
    InvalidClientHello,
    server_name,
)


def hello_of(name: str | None) -> bytes:
    """Return a real ClientHello, made by OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HELLO = hello_of("files.example.org")


def records(message: bytes, *sizes: int) -> bytes:
    """Split a message into TLS records of these sizes; the last one holds the rest."""
    data = b""
    for size in (*sizes, len(message)):
        piece, message = message[:size], message[size:]
        if piece:
            data += b"\x16\x03\x01" + len(piece).to_bytes(2) + piece
    return data


def made(extensions: bytes) -> bytes:
    """Return a ClientHello with these extensions."""
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
    body += len(extensions).to_bytes(2) + extensions
    return records(b"\x01" + len(body).to_bytes(3) + body)


def sni(*names: bytes, kind: int = 0) -> bytes:
    entries = b"".join(bytes([kind]) + len(name).to_bytes(2) + name for name in names)
    content = len(entries).to_bytes(2) + entries
    return b"\0\0" + len(content).to_bytes(2) + content


def extension(kind: int, content: bytes = b"") -> bytes:
    return kind.to_bytes(2) + len(content).to_bytes(2) + content


def test_the_name_in_a_real_client_hello() -> None:
    """The name is the one that the client connects to."""
    assert server_name(HELLO) == "files.example.org"
    assert server_name(made(sni(b"a.org"))) == "a.org"


def test_an_incomplete_hello_needs_more_bytes() -> None:
    """Every prefix of a ClientHello needs more bytes and is never invalid."""
    assert [server_name(HELLO[:size]) for size in range(len(HELLO))] == [None] * len(HELLO)


def test_a_hello_may_span_records() -> None:
    """A ClientHello in several records is read as one; too many records are refused."""
    message = HELLO[5:]
    assert server_name(records(message, 1, 100, 10)) == "files.example.org"
    with pytest.raises(InvalidClientHello, match="too many records"):
        server_name(records(message, *[1] * 100))


def test_a_hello_without_a_name_is_refused() -> None:
    """A client that names no server is refused."""
    with pytest.raises(InvalidClientHello, match="names no server"):
        server_name(hello_of(None))
    with pytest.raises(InvalidClientHello, match="names no server"):
        server_name(made(b""))
    with pytest.raises(InvalidClientHello, match="names no server"):
        server_name(made(sni(b"a.org", kind=1)))


@pytest.mark.parametrize(
    "extensions",
    [
        sni(b"a.org", b"b.org"),
        sni(b"a.org") + sni(b"b.org"),
        sni(b"a.org\xff"),
        sni(b"a.org") + b"\0",
        sni(b"a.org") + b"\0\x10\xff\xff",
        b"\0\0\0\x05\0\xff\0\0\0",
        extension(0),
    ],
)
def test_a_hello_with_several_names_is_refused(extensions: bytes) -> None:
    """Two names, or an extension with a wrong length, are refused."""
    with pytest.raises(InvalidClientHello):
        server_name(made(extensions))


@pytest.mark.parametrize("kind", [0xFE0D, 0xFFCE])
def test_an_encrypted_hello_is_refused(kind: int) -> None:
    """If the real name is encrypted, the name in clear text does not count."""
    with pytest.raises(InvalidClientHello, match="encrypted"):
        server_name(made(sni(b"files.example.org") + extension(kind, b"x")))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x80\x2e\x01\x03\x01",  # SSLv2
        b"\x17\x03\x03\0\x05hello",
        b"\x16\x02\x01\0\x05hello",
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\0\x05\x02hell",
        HELLO[:9] + b"\xff" * 40,
    ],
)
def test_other_protocols_are_refused(data: bytes) -> None:
    """Bytes that do not start a TLS handshake are refused as soon as that is known."""
    try:
        assert server_name(data) is None
    except InvalidClientHello:
        return
    with pytest.raises(InvalidClientHello):
        server_name(data + bytes(MAX_CLIENT_HELLO_BYTES))


def test_an_endless_hello_is_refused() -> None:
    """A ClientHello is bounded."""
    message = b"\x01\xff\xff\xff" + bytes(MAX_CLIENT_HELLO_BYTES)
    with pytest.raises(InvalidClientHello, match="too long"):
        server_name(records(message))


@given(st.binary(max_size=600), st.integers(0, 600))
def test_any_bytes_give_a_name_a_refusal_or_a_wait(data: bytes, at: int) -> None:
    """No input raises another error."""
    for mangled in (data, HELLO[:at] + data, made(data)):
        try:
            name = server_name(mangled)
        except InvalidClientHello:
            continue
        assert name is None or isinstance(name, str)
