"""Servers that sandboxes reach at an address of ours, with credentials that they never see.

`http://NAME.internal/PATH` leads to the proxy, which adds the header and forwards the request to the server
that the operator has named. It is plain HTTP only as far as the proxy, over the sandbox's own unix socket.
Programs that ignore `http_proxy` use `http://127.0.0.1:3128/NAME.internal/PATH`.

Only the listed methods and paths are forwarded. A path that servers could read in two ways is refused.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import h11
from kernelbroker_kernel.contract import PROXY_PORT

from .rules import Destination, Reason, Refused, end_to_end

INTERNAL = ".internal"
"""The ending of our addresses, which the Internet does not use (ICANN, 2024)."""

_ABSOLUTE = re.compile(r"http://([^/?#]*)([^#]*)", re.IGNORECASE)
_ITSELF = frozenset({f"127.0.0.1:{PROXY_PORT}", f"localhost:{PROXY_PORT}"})
_AMBIGUOUS = re.compile(
    r"%2f|%5c|%25|\\|//|;|(?:^|/)\.{1,2}(?:/|$)|[\x00-\x1f\x7f\ufffd]", re.IGNORECASE
)
"""Some servers cut a segment at its `;`, or read bytes that are no UTF-8 as a slash or a dot."""
_FORWARDED = frozenset(
    b"accept accept-charset accept-encoding accept-language cache-control content-disposition "
    b"content-encoding content-language content-length content-md5 content-range content-type date expect "
    b"git-protocol idempotency-key if-match if-modified-since if-none-match if-range if-unmodified-since "
    b"last-event-id pragma prefer range traceparent tracestate transfer-encoding user-agent x-app "
    b"x-request-id".split()
)
_FORWARDED_FAMILIES = (b"anthropic-", b"openai-", b"x-goog-api-client", b"x-stainless-")
"""Header fields of a request that are forwarded, beside those that the operator lists. No others: together
with the credential, `X-HTTP-Method-Override`, `X-Original-URL` or `Forwarded` would go round the routes."""
DROPPED_ANSWERS = frozenset({b"set-cookie"})
"""Header fields of an answer that the sandbox does not get."""


@dataclass(frozen=True, slots=True)
class Route:
    """Requests that are forwarded: those with one of the methods, and a path that matches in full."""

    methods: frozenset[str]
    path: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server behind an address of ours.

    Attributes:
        id: how templates name it.
        name: `NAME.internal` is its address inside.
        prefix: the beginning of the paths inside, which is left out of the forwarded path; "/" or "/X/".
        host, port: the server.
        path: the beginning of the forwarded path; "/" or "/X/".
        tls: None for plain HTTP.
        headers: are set in each request, in place of those of the sandbox. Secret.
        secrets: what no answer may show: the credentials in `headers`, as the server may repeat them.
        forwards: further header fields of requests that are forwarded, in lower case.
        routes: what is forwarded, by the path behind `prefix`, with a leading slash.
        idle_timeout: seconds that the server may be silent.
    """

    id: str
    name: str
    host: str
    port: int
    routes: Sequence[Route]
    prefix: str = "/"
    path: str = "/"
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    secrets: Sequence[bytes] = field(default=(), repr=False)
    forwards: frozenset[bytes] = frozenset()
    idle_timeout: float = 600.0

    @property
    def address(self) -> str:
        """The host name inside."""
        return self.name + INTERNAL

    async def connect(
        self, destination: Destination, timeout: float
    ) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server, which the operator has chosen, so any address of it is good.

        Raises:
            Refused: it does not answer, or its certificate is not valid.
        """
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        except TimeoutError:
            text = f"{self.address} does not answer; try again"
            raise Refused(Reason.TIMEOUT, text, destination, 504) from None
        except ssl.SSLError:
            text = f"the server behind {self.address} has no valid certificate: tell your operator"
            raise Refused(Reason.NOT_CONNECTED, text, destination, 502) from None
        except OSError:
            text = f"the server behind {self.address} cannot be reached: tell your operator"
            raise Refused(Reason.NOT_CONNECTED, text, destination, 502) from None
        peer = writer.get_extra_info("peername")
        return str(peer[0]), reader, writer

    def forwarded(self, request: h11.Request, rest: str) -> h11.Request:
        """The request for the server. `rest` is what follows the prefix, with the query."""
        own = frozenset(name.lower() for name, _ in self.headers)
        kept = [
            (name, value)
            for name, value in end_to_end(request)
            if name not in own and self._forwards(name)
        ]
        if self.secrets:  # they could not be found in a compressed answer
            kept = [pair for pair in kept if pair[0] != b"accept-encoding"]
            kept.append((b"accept-encoding", b"identity"))
        default = 80 if self.tls is None else 443
        host = self.host if self.port == default else f"{self.host}:{self.port}"
        return h11.Request(
            method=request.method,
            target=self.path + rest,
            headers=[(b"Host", host.encode()), *kept, *self.headers, (b"Connection", b"close")],
        )

    def _forwards(self, name: bytes) -> bool:
        return name in _FORWARDED | self.forwards or name.startswith(_FORWARDED_FAMILIES)


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request that the routes allow, and what to send to the server."""

    destination: Destination
    head: h11.Request
    upstream: Upstream


class Upstreams:
    """The upstreams that one sandbox may use."""

    def __init__(self, upstreams: Iterable[Upstream] = ()) -> None:
        self._by_address: dict[str, list[Upstream]] = {}
        for each in upstreams:
            self._by_address.setdefault(each.address, []).append(each)

    def __bool__(self) -> bool:
        return bool(self._by_address)

    def authorize(self, request: h11.Request) -> ForwardedRequest | None:
        """Apply the rules to a request whose head passed `check_head` and the parser.

        Returns:
            None if the request is for no address of ours, so that the other rules apply.

        Raises:
            Refused
        """
        method = request.method.decode("ascii")
        located = self._located(request)
        if located is None or method == "CONNECT":
            return None
        address, target = located
        destination = Destination(method, address, 80)
        path, mark, query = target.partition("?")
        if _AMBIGUOUS.search(path) or _AMBIGUOUS.search(unquote(path, errors="replace")):
            text = "the path has segments such as '..', '//' or an encoded slash"
            raise Refused(Reason.AMBIGUOUS, text, destination, 400)
        for upstream in self._by_address[address]:
            if path.startswith(upstream.prefix):
                rest = path[len(upstream.prefix) :]
                found = unquote("/" + rest, errors="replace")
                if any(
                    method in each.methods and each.path.fullmatch(found)
                    for each in upstream.routes
                ):
                    head = upstream.forwarded(request, rest + mark + query)
                    return ForwardedRequest(destination, head, upstream)
        text = f"{method} of this path is not allowed at {address}: ask your operator to allow it"
        raise Refused(Reason.NOT_LISTED, text, destination)

    def _located(self, request: h11.Request) -> tuple[str, str] | None:
        """The address of ours, and the path with the query."""
        target = request.target.decode("ascii", "replace")
        hosts = [value for name, value in request.headers if name == b"host"]
        host = hosts[0].decode("latin-1").lower() if hosts else ""
        if (match := _ABSOLUTE.fullmatch(target)) is not None:
            address, path = match[1].lower().removesuffix(":80"), match[2]
        elif target.startswith("/") and host in _ITSELF:
            address, slash, path = target[1:].partition("/")
            path = slash + path
        elif target.startswith("/"):
            address, path = host.removesuffix(f":{PROXY_PORT}").removesuffix(":80"), target
        else:
            return None
        if address not in self._by_address:
            return None
        return address, path if path.startswith("/") else f"/{path}"


def path_pattern(glob: str) -> re.Pattern[str]:
    """The expression of a path such as `/v1/models/*`: `*` is one segment, `**` anything."""
    parts = re.split(r"(\*\*|\*)", glob)
    kinds = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(kinds.get(part, re.escape(part)) for part in parts), re.DOTALL)
