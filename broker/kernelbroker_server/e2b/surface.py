"""The whole E2B surface of a broker: the control plane, and the ports of sandboxes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tornado.routing import Matcher
from tornado.web import RequestHandler

from ..supervisor import Supervisor
from .access import AccessTokens
from .handlers import UnknownSandboxPath
from .routing import SandboxRoute, matched

_UNKNOWN = SandboxRoute(None, ".*", UnknownSandboxPath)

PORT_ROUTES: Sequence[SandboxRoute] = []
"""The ports of sandboxes. The first route that matches answers."""


class E2bSurface:
    """The control plane under `/e2b`, and the ports of sandboxes.

    Args:
        templates: the names that E2B's users give templates, with the names of ours.
        access: the access tokens of sandboxes.
        domains: below which each port of each sandbox has a host name.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        access: AccessTokens,
        domains: Collection[str] = (),
    ) -> None:
        self.templates = templates
        self._access = access
        self._domains = domains

    @property
    def routes(self) -> list[tuple[str | Matcher, type[RequestHandler], Mapping[str, Any]]]:
        """The paths, with their handlers and the handlers' options. They come before all others."""
        ports = [*PORT_ROUTES]
        ports += [_UNKNOWN._replace(port=each) for each in {route.port for route in ports} | {None}]
        routes = [each._replace(options={**each.options, "access": self._access}) for each in ports]
        return [*matched(routes, self._domains)]

    def start(self, supervisor: Supervisor) -> None:
        """Nothing runs in the background."""
