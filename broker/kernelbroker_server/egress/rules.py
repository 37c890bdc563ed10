"""Authorizes a request to the proxy by its head. No I/O.

There are two kinds of request. `CONNECT name:443` opens a tunnel, which may carry only TLS for that name.
`GET http://name/path` and the like are relayed over plain HTTP to port 80. An ambiguous request is refused,
so that the proxy and the server cannot interpret it differently.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import h11

from .host_names import AddressLiteral, AllowList, InvalidHostName, normalize_host

MAX_HEAD_BYTES = 16 * 1024
HTTP_PORT, HTTPS_PORT = 80, 443

_AUTHORITY = re.compile(r"([^:\[\]@/?#\\]+|\[[^\[\]]*\])(?::([0-9]{1,5}))?")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^#]*)", re.IGNORECASE)
_PRINTABLE = re.compile(r"[^\x21-\x7e]+")
_MAX_LOGGED = 200
_DROPPED = {
    b"connection",
    b"expect",  # answered by the proxy
    b"host",  # replaced
    b"keep-alive",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
}
"""Header fields that are not forwarded, most of them hop-by-hop (RFC 9110, section 7.6.1)."""


class Reason(enum.StrEnum):
    """Why a request was refused or failed; for the audit log."""

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
class Destination:
    """The destination of a request, allowed or not. The texts are safe to log."""

    method: str = ""
    host: str = ""
    port: int = 0


class Refused(Exception):
    """A request was refused or failed. The proxy answers in place of the server.

    Attributes:
        status: of the response: 400, 403, 408 or 431 by the rules; 502 or 504 if the server cannot be
            reached.
        text: one line for the author of the code, which says what to do.
    """

    def __init__(
        self, reason: Reason, text: str, destination: Destination, status: int = 403
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.destination = destination
        self.status = status


@dataclass(frozen=True, slots=True)
class AllowedRequest:
    """A request that the rules allow.

    Attributes:
        head: what to send to the server; None for a tunnel.
    """

    destination: Destination
    head: h11.Request | None


def check_head(head: bytes) -> None:
    """Refuse a head that parsers split into lines or messages in different ways; h11 would accept it.

    Raises:
        Refused
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0")):
        raise Refused(
            Reason.AMBIGUOUS, "a header line contains a control character", Destination(), 400
        )
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise Refused(Reason.AMBIGUOUS, "a header line is folded", Destination(), 400)
    names = [line.partition(b":")[0].strip().lower() for line in lines[1:]]
    if names.count(b"content-length") + names.count(b"transfer-encoding") > 1:
        raise Refused(Reason.AMBIGUOUS, "the length of the body is given twice", Destination(), 400)


def authorize(request: h11.Request, allow: AllowList, template: str) -> AllowedRequest:
    """Apply the rules to a request whose head passed `check_head` and the parser.

    Raises:
        Refused
    """
    method = request.method.decode("ascii")
    target = request.target.decode("ascii", "replace")
    if method == "CONNECT":
        authority, scheme, path, own_port = target, "https", "", HTTPS_PORT
    else:
        authority, scheme, path = _split(target, method)
        own_port = HTTP_PORT
    host, port = _host_and_port(authority, method)
    destination = Destination(method, host, own_port if port is None else port)
    if scheme != ("https" if method == "CONNECT" else "http"):
        text = f"{scheme}:// is not supported in this form; for https use HTTPS_PROXY unchanged"
        raise Refused(Reason.SCHEME, text, destination)
    name = _name(destination)
    destination = Destination(method, name, destination.port)
    if method == "CONNECT" and port is None:
        raise Refused(Reason.MALFORMED, "CONNECT needs a port", destination, 400)
    if destination.port != own_port:
        ports = "only port 443 for https and port 80 for http"
        raise Refused(
            Reason.PORT, f"port {destination.port} of {name} is not allowed: {ports}", destination
        )
    if name not in allow:
        text = f"{name} is not in `allow` of the template {template}: ask your operator to add it"
        raise Refused(Reason.NOT_LISTED, text, destination)
    if method == "CONNECT":
        return AllowedRequest(destination, None)
    return AllowedRequest(destination, _forwarded(request, destination, path))


def _split(target: str, method: str) -> tuple[str, str, str]:
    """The authority, scheme and path of a URL."""
    if (match := _URL.fullmatch(target)) is None:
        text = "this is a proxy: it accepts CONNECT host:443 and absolute http:// URLs"
        raise Refused(Reason.NOT_FOR_A_PROXY, text, Destination(method, _loggable(target)), 400)
    scheme, authority, path = match.groups()
    return authority, scheme.lower(), path if path.startswith("/") else f"/{path}"


def _host_and_port(authority: str, method: str) -> tuple[str, int | None]:
    loggable = Destination(method, _loggable(authority))
    if "@" in authority:
        text = "a URL must not contain a user or password; send an Authorization header"
        raise Refused(
            Reason.USERINFO, text, Destination(method, _loggable(authority.rpartition("@")[2]))
        )
    if (match := _AUTHORITY.fullmatch(authority)) is None:
        if authority.count(":") > 1:
            raise Refused(
                Reason.ADDRESS_LITERAL, "IP addresses are not allowed, only host names", loggable
            )
        raise Refused(Reason.MALFORMED, "this is not a host and port", loggable, 400)
    return match[1], None if match[2] is None else int(match[2])


def _name(destination: Destination) -> str:
    loggable = Destination(destination.method, _loggable(destination.host), destination.port)
    try:
        return normalize_host(destination.host)
    except AddressLiteral as error:
        raise Refused(Reason.ADDRESS_LITERAL, str(error), loggable) from None
    except InvalidHostName as error:
        raise Refused(Reason.BAD_NAME, str(error), loggable) from None


def _forwarded(request: h11.Request, destination: Destination, path: str) -> h11.Request:
    """The request for the server: to one host, and the only request on its connection."""
    headers = [(bytes(name), bytes(value)) for name, value in request.headers]
    _check_host(headers, destination)
    host = (b"Host", destination.host.encode("ascii"))
    return h11.Request(
        method=request.method,
        target=path,
        headers=[host, *end_to_end(request), (b"Connection", b"close")],
    )


def end_to_end(request: h11.Request) -> list[tuple[bytes, bytes]]:
    """The header fields of a request that are forwarded, with names in lower case."""
    headers = [(bytes(name), bytes(value)) for name, value in request.headers]
    named = {
        name.strip().lower()
        for key, value in headers
        if key == b"connection"
        for name in value.split(b",")
    } - {b"content-length", b"transfer-encoding"}
    return [(name, value) for name, value in headers if name not in _DROPPED | named]


def _check_host(headers: list[tuple[bytes, bytes]], destination: Destination) -> None:
    for name, value in headers:
        if name == b"host":
            host, port = _host_and_port(value.decode("latin-1"), destination.method)
            try:
                agrees = normalize_host(host) == destination.host and port in (
                    None,
                    destination.port,
                )
            except InvalidHostName:
                agrees = False
            if not agrees:
                text = f"the Host header differs from the host of the URL, {destination.host}"
                raise Refused(Reason.HOST_MISMATCH, text, destination)


def _loggable(text: str) -> str:
    """Text from a request, made safe for a log."""
    return _PRINTABLE.sub("?", text)[:_MAX_LOGGED]
