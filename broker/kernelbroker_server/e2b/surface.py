"""The whole E2B surface of a broker: the control plane, and the ports of sandboxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tornado.routing import Matcher
from tornado.web import RequestHandler

from ..supervisor import Supervisor
from . import code_interpreter, listing, metrics, sandboxes, snapshots
from . import ports as other_ports
from .address import PREFIX, SANDBOX_ID
from .envd import daemon
from .handlers import UnknownE2bPath, UnknownSandboxPath
from .routing import SandboxRoute, matched
from .surface_options import SurfaceOptions

_API = rf"{PREFIX}(?:/v[0-9]+)?"
_ONE = f"{_API}/sandboxes/(?P<sandbox_id>{SANDBOX_ID})"

CONTROL_ROUTES: Sequence[tuple[str, type[RequestHandler]]] = [
    (f"{PREFIX}/sandboxes", listing.FirstSandboxList),
    (f"{_API}/sandboxes", listing.SandboxList),
    (f"{_API}/sandboxes/metrics", metrics.AllMetrics),
    (_ONE, sandboxes.OneSandbox),
    (f"{_ONE}/connect", sandboxes.Connect),
    (f"{_ONE}/resume", sandboxes.Resume),
    (f"{_ONE}/pause", sandboxes.Pause),
    (f"{_ONE}/timeout", sandboxes.SetTimeout),
    (f"{_ONE}/refreshes", sandboxes.Refreshes),
    (f"{_ONE}/network", sandboxes.UpdateNetwork),
    (f"{_ONE}/fork", sandboxes.Forks),
    (f"{_ONE}/metrics", metrics.Metrics),
    (f"{_ONE}/snapshots", snapshots.NewSnapshots),
    (f"{_API}/snapshots", snapshots.Snapshots),
    (f"{_API}/templates", listing.Templates),
    (f"{_API}/templates/aliases/(?P<name>[^/]+)", listing.TemplateAlias),
    (f"{_API}/templates/(?P<name>[^/]+)", snapshots.DeleteTemplate),
]
"""The control plane. All versions of a path are served alike, except the first list of sandboxes."""

PORT_ROUTES: Sequence[SandboxRoute] = [*code_interpreter.ROUTES]
"""The ports of sandboxes. The first route that matches answers."""

_UNKNOWN = SandboxRoute(None, ".*", UnknownSandboxPath)


class E2bSurface:
    """The control plane under `/e2b`, and the ports of sandboxes."""

    def __init__(self, options: SurfaceOptions) -> None:
        self._options = options

    @property
    def routes(self) -> list[tuple[str | Matcher, type[RequestHandler], Mapping[str, Any]]]:
        """The paths, with their handlers and the handlers' options. They come before all others."""
        options = self._options
        ports = [*PORT_ROUTES, *daemon.routes(), *other_ports.ROUTES]
        ports += [_UNKNOWN._replace(port=each) for each in {route.port for route in ports} | {None}]
        access = {"access": options.access}
        routes = [each._replace(options={**each.options, **access}) for each in ports]
        return [
            *matched(routes, options.domains),
            *((path, handler, {"surface": options}) for path, handler in CONTROL_ROUTES),
            (f"{PREFIX}(?:/.*)?", UnknownE2bPath, {}),
        ]

    def start(self, supervisor: Supervisor) -> None:
        """Nothing runs in the background."""
