"""The rules of the egress proxy: names, addresses and request heads, valid and hostile."""

from __future__ import annotations

import re
from ipaddress import ip_network

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.egress.addresses import may_connect, parse_address
from kernelbroker_server.egress.host_names import (
    AllowList,
    InvalidHostName,
    normalize_allow_entry,
    normalize_host,
)
from kernelbroker_server.egress.rules import AllowedRequest, Reason, Refused, authorize, check_head

ALLOW = AllowList(["files.example.org", "*.example.com", "bücher.example", "Mirror"])


def authorize_request(head: bytes) -> AllowedRequest:
    """Parse and authorize a request, as the proxy does."""
    check_head(head)
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    return authorize(request, ALLOW, "default")


def head(target: str, *headers: str, method: str = "GET", host: str | None = None) -> bytes:
    if host is None:
        host = re.split("[/?]", target.partition("://")[2])[0]
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def connect(authority: str) -> bytes:
    return head(authority, method="CONNECT", host=authority)


def refused(data: bytes) -> Refused:
    with pytest.raises(Refused) as info:
        authorize_request(data)
    assert info.value.text.isprintable()
    assert info.value.text.isascii()
    return info.value


# Names


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("files.example.org:443", "files.example.org"),
        ("FILES.Example.ORG:443", "files.example.org"),
        ("files.example.org.:443", "files.example.org"),
        ("a.example.com:443", "a.example.com"),
        ("a.b.example.com:443", "a.b.example.com"),
        ("xn--bcher-kva.example:443", "xn--bcher-kva.example"),
        ("mirror:443", "mirror"),
    ],
)
def test_tunnels_to_allowed_names(authority: str, host: str) -> None:
    """An allowed name, or one below an entry with `*.`, is accepted in any notation."""
    target = authorize_request(connect(authority))
    assert (target.destination.host, target.destination.port, target.head) == (host, 443, None)


@pytest.mark.parametrize(
    "name",
    [
        "example.org",
        "example.com",
        "evil-example.com",
        "xexample.com",
        "files.example.org.evil.test",
        "files.example.orgs",
        "com",
        "localhost",
        "b\u00fccher.example".encode("idna").decode() + ".test",
        "xn--fles-6fd.example.org",
        "files.example.org..",
        ".files.example.org",
        "files..example.org",
        "*.example.com",
        "-x.example.com",
        "x-.example.com",
        "a%2eexample.com",
        "files.example.org%00.example.com",
        "a,b.example.com",
        "a;b.example.com",
        "a$b.example.com",
        f"{'a' * 64}.example.com",
        ".".join(["a" * 50] * 6) + ".example.com",
        "0x7f.1",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    """A name that is not allowed, however similar, is refused with the host's name."""
    verdict = refused(connect(f"{name}:443"))
    assert verdict.reason in (Reason.NOT_LISTED, Reason.BAD_NAME, Reason.ADDRESS_LITERAL)
    assert verdict.status == 403


def test_a_refusal_says_what_to_do() -> None:
    """The text names the host, the template and the setting."""
    text = refused(connect("pypi.org:443")).text
    assert text == "pypi.org is not in `allow` of the template default: ask your operator to add it"


ADDRESSES = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7F.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "0x7f.0x0.0x0.0x1",
    "1.1.1.1",
    "169.254.169.254",
    "0",
    "0x",
    "256.256.256.256",
    "99999999999",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[64:ff9b::7f00:1]",
    "[2606:4700::1111]",
    "[::]",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_ip_addresses_are_refused_in_any_notation(address: str) -> None:
    """An address is never taken for a name, with any entries in the list."""
    assert refused(connect(f"{address}:443")).reason is Reason.ADDRESS_LITERAL
    assert refused(head(f"http://{address}/")).reason is Reason.ADDRESS_LITERAL


@pytest.mark.parametrize("authority", ["::1:443", "::ffff:127.0.0.1:443", "fe80::1%eth0:443"])
def test_ipv6_addresses_without_brackets_are_refused(authority: str) -> None:
    """An IPv6 address needs no brackets to be recognized."""
    assert refused(connect(authority)).reason is Reason.ADDRESS_LITERAL


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("*.Example.org", "*.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("*.例え.jp", "*.xn--r8jz45g.jp"),
    ],
)
def test_entries_are_normalized(entry: str, meant: str) -> None:
    """An entry is kept in the form in which it is compared."""
    assert normalize_allow_entry(entry) == meant


@pytest.mark.parametrize(
    "entry",
    [
        "*",
        "*.",
        "",
        ".",
        "https://pypi.org",
        "pypi.org/simple",
        "pypi.org:443",
        "a.*.org",
        "*pypi.org",
        "*.*.org",
        "10.0.0.1",
        "::1",
        "[::1]",
        "user@pypi.org",
        "py pi.org",
        "a\u2024b.org\u2025",
    ],
)
def test_invalid_entries_are_refused(entry: str) -> None:
    """An entry that is not a name is refused, with what an entry looks like."""
    with pytest.raises(InvalidHostName, match=r"\*\.example\.org"):
        normalize_allow_entry(entry)


@given(st.text())
def test_a_normalized_name_is_stable_and_safe(text: str) -> None:
    """Normalizing a name again changes nothing, and the name is safe in a log."""
    try:
        name = normalize_host(text)
    except InvalidHostName:
        return
    assert normalize_host(name) == name
    assert name.isascii()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


# Addresses

NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254
    172.16.0.1 172.17.0.1 172.31.255.255 192.0.0.9 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1
    198.51.100.1 203.0.113.1 224.0.0.1 224.0.1.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
    64:ff9b:1::1 100::1 2001::1 2001:0:53aa:64c:0:0:7f00:1 2001:db8::1 2002:7f00:1:: 2002:a00:1::
    3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 ff0e::1
"""


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "151.101.0.223", "2606:4700::1111", "64:ff9b::101:101"]
)
def test_public_addresses_may_be_connected_to(address: str) -> None:
    """Addresses of the Internet are accepted."""
    parsed = parse_address(address)
    assert parsed is not None
    assert may_connect(parsed, ())


@pytest.mark.parametrize(
    "address",
    NOT_PUBLIC.split(),
)
def test_other_addresses_may_not_be_connected_to(address: str) -> None:
    """Private and special addresses, and those that lead to them by a tunnel, are refused."""
    parsed = parse_address(address)
    assert parsed is not None
    assert not may_connect(parsed, ())


@pytest.mark.parametrize(
    "text", ["fe80::1%eth0", "fe80::1%1", "example.org", "", "1.2.3", "010.1.1.1"]
)
def test_invalid_addresses_are_not_parsed(text: str) -> None:
    """Zones, names and outdated notations are not addresses of a resolver."""
    assert parse_address(text) is None


def test_permitted_private_networks() -> None:
    """Only addresses in the permitted networks are accepted, also IPv4-mapped ones."""
    private = [ip_network("10.1.2.0/24"), ip_network("fd00:1::/32")]
    for address, verdict in {
        "10.1.2.3": True,
        "::ffff:10.1.2.3": True,
        "64:ff9b::a01:203": True,
        "fd00:1::5": True,
        "10.1.3.3": False,
        "fd00:2::5": False,
        "169.254.169.254": False,
    }.items():
        parsed = parse_address(address)
        assert parsed is not None
        assert may_connect(parsed, private) is verdict, address


# Requests


@pytest.mark.parametrize(
    ("authority", "reason"),
    [
        ("files.example.org:80", Reason.PORT),
        ("files.example.org:22", Reason.PORT),
        ("files.example.org:8443", Reason.PORT),
        ("files.example.org:0443", None),
        ("files.example.org:65979", Reason.PORT),
        ("files.example.org:0", Reason.PORT),
        ("files.example.org:", Reason.MALFORMED),
        ("files.example.org", Reason.MALFORMED),
        ("files.example.org:443443", Reason.MALFORMED),
        ("files.example.org:+443", Reason.MALFORMED),
        ("files.example.org:443@127.0.0.1:443", Reason.USERINFO),
        ("user@files.example.org:443", Reason.USERINFO),
        ("http://files.example.org:443", Reason.MALFORMED),
        ("files.example.org:443/", Reason.MALFORMED),
        ("files.example.org:443?x", Reason.MALFORMED),
        ("/", Reason.MALFORMED),
        ("*", Reason.MALFORMED),
    ],
)
def test_tunnels_need_port_443_and_a_plain_name(authority: str, reason: Reason | None) -> None:
    """Any other authority is refused with its reason."""
    if reason is None:
        assert authorize_request(connect(authority)).destination.port == 443
    elif reason is Reason.MALFORMED:
        assert refused(connect(authority)).reason in (
            Reason.MALFORMED,
            Reason.BAD_NAME,
            Reason.ADDRESS_LITERAL,
        )
    else:
        assert refused(connect(authority)).reason is reason


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://files.example.org/", Reason.SCHEME),
        ("ftp://files.example.org/", Reason.SCHEME),
        ("file://files.example.org/etc/passwd", Reason.SCHEME),
        ("http://files.example.org:8080/", Reason.PORT),
        ("http://files.example.org:443/", Reason.PORT),
        ("http://user:secret@files.example.org/", Reason.USERINFO),
        ("http://files.example.org@127.0.0.1/", Reason.USERINFO),
        ("http://127.0.0.1@files.example.org/", Reason.USERINFO),
        ("http://files.example.org%40127.0.0.1/", Reason.ADDRESS_LITERAL),
        ("http://127.0.0.1\\@files.example.org/", Reason.USERINFO),
        ("http://127.0.0.1\\.example.com/", Reason.MALFORMED),
        ("http://files.example.org#@127.0.0.1/", Reason.NOT_FOR_A_PROXY),
        ("http://files.example.org/#x", Reason.NOT_FOR_A_PROXY),
        ("http://pypi.org/", Reason.NOT_LISTED),
        ("http:///", Reason.MALFORMED),
        ("http:/files.example.org/", Reason.NOT_FOR_A_PROXY),
        ("//files.example.org/", Reason.NOT_FOR_A_PROXY),
        ("/index.html", Reason.NOT_FOR_A_PROXY),
        ("files.example.org", Reason.NOT_FOR_A_PROXY),
    ],
)
def test_plain_requests_need_http_and_port_80(url: str, reason: Reason) -> None:
    """Any other URL is refused with its reason, and its secrets are not logged."""
    verdict = refused(head(url, host="files.example.org"))
    assert verdict.reason is reason
    assert "secret" not in f"{verdict.destination}{verdict.text}"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://files.example.org/a/b?c=d", "/a/b?c=d"),
        ("http://files.example.org", "/"),
        ("http://files.example.org?x=1", "/?x=1"),
        ("HTTP://Files.Example.org.:80/a", "/a"),
        ("http://files.example.org//127.0.0.1/@x:y", "//127.0.0.1/@x:y"),
    ],
)
def test_the_forwarded_request(url: str, path: str) -> None:
    """The server gets the path alone, the authorized host, and no header field for the proxy."""
    headers = [
        "Proxy-Authorization: Basic x",
        "Proxy-Connection: keep-alive",
        "Connection: keep-alive, X-Hop, Content-Length",
        "X-Hop: 1",
        "Upgrade: websocket",
        "Content-Length: 3",
        "X-Kept: 1",
    ]
    target = authorize_request(head(url, *headers))
    assert target.head is not None
    assert target.head.target == path.encode()
    assert list(target.head.headers) == [
        (b"host", b"files.example.org"),
        (b"content-length", b"3"),
        (b"x-kept", b"1"),
        (b"connection", b"close"),
    ]


@pytest.mark.parametrize(
    "host", ["pypi.org", "127.0.0.1", "files.example.org:81", "a.example.com", "[::1]"]
)
def test_a_different_host_header_is_refused(host: str) -> None:
    """A Host header that differs from the URL is refused."""
    verdict = refused(head("http://files.example.org/", host=host))
    assert verdict.reason is Reason.HOST_MISMATCH


@pytest.mark.parametrize(
    "host", ["files.example.org", "FILES.example.org:80", "files.example.org."]
)
def test_another_notation_of_the_host_is_accepted(host: str) -> None:
    """A Host header may have another notation of the same host."""
    assert (
        authorize_request(head("http://files.example.org/", host=host)).destination.host
        == "files.example.org"
    )


LINE = "POST http://files.example.org/ HTTP/1.1\r\nHost: files.example.org\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\ncontent-length: 4\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "X: a\r\n folded\r\n",
        "X: a\r\n\tTransfer-Encoding: chunked\r\n",
        "X: a\nTransfer-Encoding: chunked\r\n",
        "X: a\rTransfer-Encoding: chunked\r\n",
        "X: a\0b\r\n",
    ],
)
def test_ambiguous_requests_are_refused(headers: str) -> None:
    """Two lengths of a body, folded lines and stray line ends are refused."""
    assert refused(f"{LINE}{headers}\r\n".encode()).reason is Reason.AMBIGUOUS


@pytest.mark.parametrize(
    "headers",
    [
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: -1\r\n",
        "Host: files.example.org\r\n",
        "X Y: a\r\n",
        ": a\r\n",
    ],
)
def test_malformed_requests_are_refused(headers: str) -> None:
    """The parser refuses what is malformed."""
    with pytest.raises(h11.RemoteProtocolError):
        authorize_request(f"{LINE}{headers}\r\n".encode())
