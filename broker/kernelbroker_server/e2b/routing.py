"""Routes by the port of a sandbox and the path on it, for Tornado's router."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher
from tornado.web import RequestHandler

from .address import SandboxAddress, address_of


class SandboxRoute(NamedTuple):
    """The handler of some paths on a port of sandboxes.

    Attributes:
        port: None for every port that has no route of its own.
        pattern: a regular expression of the whole path; its named groups become arguments of the method.
        handler: a subclass of `handlers.SandboxHandler`.
        options: arguments of `initialize`, besides those of `SandboxHandler`.
    """

    port: int | None
    pattern: str
    handler: type[RequestHandler]
    options: Mapping[str, Any] = {}


class SandboxMatcher(Matcher):
    """Matches the requests of one route, and gives the handler `address`.

    Args:
        taken: the ports that a route without a port does not match.
    """

    def __init__(
        self, route: SandboxRoute, taken: Collection[int], domains: Collection[str]
    ) -> None:
        self._port = route.port
        self._pattern = re.compile(route.pattern)
        self._taken = taken
        self._domains = domains

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        address = address_of(request, self._domains)
        if address is None or not self._is_port(address):
            return None
        found = self._pattern.fullmatch(address.path)
        if found is None:
            return None
        # A handler's options are shared by all requests, so the address is passed as an attribute.
        request.sandbox_address = address  # type: ignore[attr-defined]
        return {"path_kwargs": {n: v.encode() for n, v in found.groupdict(default="").items()}}

    def __str__(self) -> str:
        port = "other ports" if self._port is None else f"port {self._port}"
        return f"e2b {port} {self._pattern.pattern}"

    def _is_port(self, address: SandboxAddress) -> bool:
        if self._port is None:
            return address.port not in self._taken
        return address.port == self._port


def matched(
    routes: Iterable[SandboxRoute], domains: Collection[str]
) -> list[tuple[Matcher, type[RequestHandler], Mapping[str, Any]]]:
    """Return the routes as the application takes them."""
    routes = list(routes)
    taken = frozenset(each.port for each in routes if each.port is not None)
    return [(SandboxMatcher(each, taken, domains), each.handler, each.options) for each in routes]
