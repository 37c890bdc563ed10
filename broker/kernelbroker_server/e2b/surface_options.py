"""What the handlers of the control plane know of the settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kernelbroker.protocol.errors import NotFound
from tornado.httputil import HTTPServerRequest, split_host_and_port

from .access import AccessTokens


@dataclass(frozen=True, slots=True)
class SurfaceOptions:
    """The settings of the surface.

    Attributes:
        templates: the names that E2B's users give templates, with the names of ours.
        domains: below which each port of each sandbox has a host name.
    """

    access: AccessTokens
    templates: Mapping[str, str]
    domains: Sequence[str] = ()

    def template_of(self, name: str, allowed: Collection[str]) -> str:
        """Return our template for a name of E2B's users. Raises NotFound."""
        template = self.templates.get(name, name)
        if template not in allowed:
            known = sorted({*allowed, *(n for n, t in self.templates.items() if t in allowed)})
            raise NotFound(
                f"template '{name}' was not found; there are: {', '.join(known)}. The setting "
                "e2b.templates maps further names"
            )
        return template

    def aliases_of(self, template: str) -> list[str]:
        """Return the names by which E2B's users know a template of ours."""
        return [name for name, ours in self.templates.items() if ours == template]

    def alias_of(self, template: str) -> str:
        """Return one of them; the template's own name if there is none."""
        return next(iter(self.aliases_of(template)), template)

    def domain_for(self, request: HTTPServerRequest) -> str | None:
        """Return the domain for host names of ports, with the port that the client has used."""
        if not self.domains:
            return None
        _, port = split_host_and_port(request.host.lower())
        return self.domains[0] if port is None else f"{self.domains[0]}:{port}"
