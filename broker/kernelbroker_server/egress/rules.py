"""What the proxy lets through, decided from the head of a request. Pure: bytes in, a verdict out.

There are two kinds of request. `CONNECT name:443` asks for a tunnel, in which only TLS for that name
may be spoken; `GET http://name/path` and the like are passed on over plain HTTP to port 80. A request
that could be read in two ways is refused: no reading of ours shall differ from the server's.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import h11

from .names import AddressLiteral, AllowList, BadName, canonical

MAX_HEAD_BYTES = 16 * 1024
HTTP_PORT, HTTPS_PORT = 80, 443

_AUTHORITY = re.compile(r"([^:\[\]@/?#\\]+|\[[^\[\]]*\])(?::([0-9]{1,5}))?")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^#]*)", re.IGNORECASE)
_PRINTABLE = re.compile(r"[^\x21-\x7e]+")
_MAX_TOLD = 200
_DROPPED = {
    b"connection",
    b"expect",  # answered here
    b"host",  # written anew
    b"keep-alive",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
}
"""Fields that are for the next hop only (RFC 9110, section 7.6.1)."""


class Reason(enum.StrEnum):
    """Why a request was not answered; for the audit log."""

    MALFORMED = "malformed"
    AMBIGUOUS = "ambiguous"
    NOT_FOR_A_PROXY = "not_for_a_proxy"
    SCHEME = "scheme"
    USERINFO = "userinfo"
    ADDRESS_LITERAL = "address_literal"
    BAD_NAME = "bad_name"
    PORT = "port"
    NOT_LISTED = "not_listed"
    HOST_MISMATCH = "host_mismatch"
    NOT_TLS_FOR_HOST = "not_tls_for_host"
    PRIVATE_ADDRESS = "private_address"
    NOT_RESOLVED = "not_resolved"
    NOT_CONNECTED = "not_connected"
    BROKEN_ANSWER = "broken_answer"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request names, whether it may have it or not; texts are for people and logs."""

    method: str = ""
    host: str = ""
    port: int = 0


class Refused(Exception):
    """A request that is not answered by whom it asked for.

    Attributes:
        status: of the answer: 400 or 403 by the rules, 502 or 504 where the way is broken.
        text: one line for whoever wrote the code, which says what to do.
    """

    def __init__(self, reason: Reason, text: str, asked: Asked, status: int = 403) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.asked = asked
        self.status = status


@dataclass(frozen=True, slots=True)
class Target:
    """An allowed request: a tunnel if `head` is None, else what to send in its place."""

    asked: Asked
    head: h11.Request | None


def check_lines(head: bytes) -> None:
    """Refuse a head whose lines could be told apart in two ways; the parser would be lenient.

    Raises Refused.
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0")):
        raise Refused(Reason.AMBIGUOUS, "a line has a control character in it", Asked(), 400)
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise Refused(Reason.AMBIGUOUS, "a header line is folded", Asked(), 400)
    names = [line.partition(b":")[0].strip().lower() for line in lines[1:]]
    if names.count(b"content-length") + names.count(b"transfer-encoding") > 1:
        raise Refused(Reason.AMBIGUOUS, "the length of the body is said twice", Asked(), 400)


def judge(request: h11.Request, allow: AllowList, template: str) -> Target:
    """What to do for a request whose head passed `check_lines` and the parser.

    Raises Refused.
    """
    method = request.method.decode("ascii")
    target = request.target.decode("ascii", "replace")
    if method == "CONNECT":
        authority, scheme, path, own_port = target, "https", "", HTTPS_PORT
    else:
        authority, scheme, path = _split(target, method)
        own_port = HTTP_PORT
    host, port = _host_and_port(authority, method)
    asked = Asked(method, host, own_port if port is None else port)
    if scheme != ("https" if method == "CONNECT" else "http"):
        text = f"{scheme}:// is not passed on like this; for https set HTTPS_PROXY as it is"
        raise Refused(Reason.SCHEME, text, asked)
    name = _name(asked)
    asked = Asked(method, name, asked.port)
    if method == "CONNECT" and port is None:
        raise Refused(Reason.MALFORMED, "CONNECT needs a port", asked, 400)
    if asked.port != own_port:
        ports = "only port 443 for https and port 80 for http"
        raise Refused(Reason.PORT, f"port {asked.port} of {name} is closed: {ports}", asked)
    if name not in allow:
        text = f"{name} is not in `allow` of the template {template}: ask your operator to add it"
        raise Refused(Reason.NOT_LISTED, text, asked)
    if method == "CONNECT":
        return Target(asked, None)
    return Target(asked, _forwarded(request, asked, path))


def _split(target: str, method: str) -> tuple[str, str, str]:
    """Authority, scheme and path of a URL."""
    if (match := _URL.fullmatch(target)) is None:
        text = "this is a proxy: it takes CONNECT host:443, and http:// URLs in full"
        raise Refused(Reason.NOT_FOR_A_PROXY, text, Asked(method, _told(target)), 400)
    scheme, authority, path = match.groups()
    return authority, scheme.lower(), path if path.startswith("/") else f"/{path}"


def _host_and_port(authority: str, method: str) -> tuple[str, int | None]:
    told = Asked(method, _told(authority))
    if "@" in authority:
        text = "no user or password in a URL; send an Authorization header"
        raise Refused(Reason.USERINFO, text, Asked(method, _told(authority.rpartition("@")[2])))
    if (match := _AUTHORITY.fullmatch(authority)) is None:
        if authority.count(":") > 1:
            raise Refused(Reason.ADDRESS_LITERAL, "addresses are not taken, only names", told)
        raise Refused(Reason.MALFORMED, "this is no host and port", told, 400)
    return match[1], None if match[2] is None else int(match[2])


def _name(asked: Asked) -> str:
    told = Asked(asked.method, _told(asked.host), asked.port)
    try:
        return canonical(asked.host)
    except AddressLiteral as error:
        raise Refused(Reason.ADDRESS_LITERAL, str(error), told) from None
    except BadName as error:
        raise Refused(Reason.BAD_NAME, str(error), told) from None


def _forwarded(request: h11.Request, asked: Asked, path: str) -> h11.Request:
    """The request as the server gets it: for one host, and the only one on its connection."""
    headers = [(bytes(name), bytes(value)) for name, value in request.headers]
    _check_host(headers, asked)
    named = {
        name.strip().lower()
        for key, value in headers
        if key == b"connection"
        for name in value.split(b",")
    } - {b"content-length", b"transfer-encoding"}
    kept = [(name, value) for name, value in headers if name not in _DROPPED | named]
    host = (b"Host", asked.host.encode("ascii"))
    return h11.Request(
        method=request.method,
        target=path,
        headers=[host, *kept, (b"Connection", b"close")],
    )


def _check_host(headers: list[tuple[bytes, bytes]], asked: Asked) -> None:
    for name, value in headers:
        if name == b"host":
            host, port = _host_and_port(value.decode("latin-1"), asked.method)
            try:
                agrees = canonical(host) == asked.host and port in (None, asked.port)
            except BadName:
                agrees = False
            if not agrees:
                text = f"the Host header is not that of the URL, {asked.host}"
                raise Refused(Reason.HOST_MISMATCH, text, asked)


def _told(text: str) -> str:
    """What hostile code sent, so that it can stand in a log."""
    return _PRINTABLE.sub("?", text)[:_MAX_TOLD]
