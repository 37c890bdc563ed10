"""Which headers pass between a client and a server that user code has started. No I/O.

Neither side sees what concerns only the connection to the broker. The server gets no token of the broker;
its answers cannot act for the broker's own origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tornado.httputil import HTTPHeaders

_HOP_BY_HOP = frozenset(
    {
        *(
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
        ),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_OURS = frozenset(
    {
        *("host", "content-length", "authorization", "x-api-key", "x-access-token", "x-request-id"),
        "x-kernelbroker-hop",
        *("e2b-traffic-access-token", "e2b-sandbox-id", "e2b-sandbox-port", "expect"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "forwarded"),
    }
)
_PROTOCOLS = "sec-websocket-protocol"
_OF_THE_ORIGIN = frozenset(
    {
        *("set-cookie", "set-cookie2", "clear-site-data", "service-worker-allowed", "alt-svc"),
        *(
            "strict-transport-security",
            "public-key-pins",
            "origin-agent-cluster",
            "www-authenticate",
        ),
        *(
            "content-security-policy",
            "content-security-policy-report-only",
            "x-content-type-options",
        ),
        *("reporting-endpoints", "report-to", "nel", "server", "date", "content-length"),
    }
)
_SANDBOX = "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"
"""A page gets an origin of its own: it can neither read the broker's pages nor use their storage."""


def to_server(
    headers: HTTPHeaders, *, port: int, host: str, protocol: str, authorization: bool
) -> list[tuple[str, str]]:
    """Return the headers of a request for the server, without the framing of its body.

    Args:
        host: of the client's request.
        protocol: http or https.
        authorization: the Authorization header is not for the broker.
    """
    dropped = _HOP_BY_HOP | _OURS | _named_by_connection(headers) | {"cookie"}
    dropped -= {"authorization"} if authorization else set()
    passed = [("Host", f"localhost:{port}")]
    for name, value in headers.get_all():
        if name.lower() == _PROTOCOLS:
            passed += [(name, each) for each in _own_protocols(value)]
        elif name.lower() not in dropped:
            passed.append((name, value))
    return [*passed, ("X-Forwarded-Host", host), ("X-Forwarded-Proto", protocol)]


def to_client(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the headers of the server's answer for the client, without the framing of its body."""
    given = HTTPHeaders()
    for name, value in headers:
        given.add(name, value)
    dropped = _HOP_BY_HOP | _OF_THE_ORIGIN | _named_by_connection(given)
    for name, value in given.get_all():
        if name.lower() not in dropped:
            yield name, value
    yield "Content-Security-Policy", _SANDBOX
    yield "X-Content-Type-Options", "nosniff"


def _named_by_connection(headers: HTTPHeaders) -> frozenset[str]:
    return frozenset(each.strip().lower() for each in headers.get("Connection", "").split(","))


def _own_protocols(value: str) -> list[str]:
    """The subprotocols that are not the broker's, which may hold a token."""
    offered = (each.strip() for each in value.split(","))
    left = [each for each in offered if each and not each.startswith("kernelbroker.")]
    return [", ".join(left)] if left else []
