"""The server's name in what a TLS client says first."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.egress.hello import MAX_HELLO_BYTES, BadHello, server_name


def hello_of(name: str | None) -> bytes:
    """A real one, from OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HELLO = hello_of("files.example.org")


def records(message: bytes, *sizes: int) -> bytes:
    """A message in records of these sizes, the last one as long as it needs to be."""
    data = b""
    for size in (*sizes, len(message)):
        piece, message = message[:size], message[size:]
        if piece:
            data += b"\x16\x03\x01" + len(piece).to_bytes(2) + piece
    return data


def made(extensions: bytes) -> bytes:
    """A hello with these extensions."""
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
    body += len(extensions).to_bytes(2) + extensions
    return records(b"\x01" + len(body).to_bytes(3) + body)


def sni(*names: bytes, kind: int = 0) -> bytes:
    entries = b"".join(bytes([kind]) + len(name).to_bytes(2) + name for name in names)
    content = len(entries).to_bytes(2) + entries
    return b"\0\0" + len(content).to_bytes(2) + content


def extension(kind: int, content: bytes = b"") -> bytes:
    return kind.to_bytes(2) + len(content).to_bytes(2) + content


def test_a_real_hello() -> None:
    """The name is what the client was told to ask for."""
    assert server_name(HELLO) == "files.example.org"
    assert server_name(made(sni(b"a.org"))) == "a.org"


def test_it_comes_in_pieces() -> None:
    """Any beginning of it is not enough yet, and never wrong."""
    assert [server_name(HELLO[:size]) for size in range(len(HELLO))] == [None] * len(HELLO)


def test_it_spans_records() -> None:
    """A hello in several records is read as one."""
    message = HELLO[5:]
    assert server_name(records(message, 1, 100, 10)) == "files.example.org"
    with pytest.raises(BadHello, match="too many pieces"):
        server_name(records(message, *[1] * 100))


def test_no_name() -> None:
    """A client that names no server is refused."""
    with pytest.raises(BadHello, match="names no server"):
        server_name(hello_of(None))
    with pytest.raises(BadHello, match="names no server"):
        server_name(made(b""))
    with pytest.raises(BadHello, match="names no server"):
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
def test_more_than_one_name(extensions: bytes) -> None:
    """Two names, or an extension that does not end where it says, are refused."""
    with pytest.raises(BadHello):
        server_name(made(extensions))


@pytest.mark.parametrize("kind", [0xFE0D, 0xFFCE])
def test_a_masked_name(kind: int) -> None:
    """Where the true name is encrypted, the one in the clear counts for nothing."""
    with pytest.raises(BadHello, match="encrypted"):
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
def test_what_is_not_tls(data: bytes) -> None:
    """What does not begin as TLS does is refused at once, or once it is malformed."""
    try:
        assert server_name(data) is None
    except BadHello:
        return
    with pytest.raises(BadHello):
        server_name(data + bytes(MAX_HELLO_BYTES))


def test_it_is_bounded() -> None:
    """A hello that never ends is refused."""
    message = b"\x01\xff\xff\xff" + bytes(MAX_HELLO_BYTES)
    with pytest.raises(BadHello, match="too long"):
        server_name(records(message))


@given(st.binary(max_size=600), st.integers(0, 600))
def test_any_bytes(data: bytes, at: int) -> None:
    """Whatever comes, there is a name, a refusal, or a wait for more."""
    for mangled in (data, HELLO[:at] + data, made(data)):
        try:
            name = server_name(mangled)
        except BadHello:
            continue
        assert name is None or isinstance(name, str)
