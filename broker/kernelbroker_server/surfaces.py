"""Creates the surfaces besides the native API: the protocols of other clients."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from .api.routes import Route
from .config import ExtraMissing, Settings
from .console.surface import ConsoleSurface
from .documentation.surface import DocumentationSurface
from .e2b.factory import make_surface as make_e2b
from .jupyter.surface import JupyterSurface
from .service.tenant_service import TenantServices
from .sessions.durable_store import DurableStore
from .sessions.store import EventStore
from .state_copies import StateCopies
from .state_factory import key_source, state_directory
from .supervisor import Supervisor
from .telemetry.events import Observer
from .tenants.keyring import Keyring


class Surface(Protocol):
    """One protocol."""

    @property
    def routes(self) -> Sequence[Route]:
        """The paths, with their handlers and the handlers' options. They come before the native ones."""

    def start(self, supervisor: Supervisor) -> None:
        """Begin to work in the background."""


def make_surfaces(
    settings: Settings,
    store: EventStore,
    data_dir: Path,
    keyring: Keyring,
    tenants: TenantServices,
    observer: Observer,
    *,
    takes_over: bool,
) -> list[Surface]:
    """Return the surfaces that are on, not started.

    Args:
        store: is started, so that its directory is this broker's.
        data_dir: that of the backend.
        takes_over: an earlier broker may still listen.

    Raises:
        ConfigError
    """
    keys = key_source(settings, data_dir)
    surfaces: list[Surface] = []
    if settings.e2b.enabled:
        surfaces.append(make_e2b(settings, keys))
    if settings.jupyter.enabled:
        surfaces.append(JupyterSurface())
    if settings.console:
        surfaces.append(ConsoleSurface())
    if settings.docs:
        surfaces.append(DocumentationSurface())
    if (mcp := _mcp(settings, store, keys, keyring)) is not None:
        surfaces.append(mcp)
    state_dir = state_directory(settings, data_dir)
    if state_dir is not None and isinstance(store, DurableStore):
        surfaces.append(StateCopies(state_dir, store))
    if settings.grpc.port is not None:
        if importlib.util.find_spec("grpc_reflection") is None:
            raise ExtraMissing("grpc.port", "grpc")
        from .grpc_api.factory import make_surface as make_grpc

        grpc = make_grpc(settings, tenants, keyring, observer, takes_over=takes_over)
        surfaces.append(grpc)
    return surfaces


def _mcp(
    settings: Settings, store: EventStore, keys: Path | bytes | None, keyring: Keyring
) -> Surface | None:
    """Return the MCP server; None if it is off or its extra is not installed."""
    if settings.mcp.enabled is False or not settings.mcp.tool_sets:
        return None
    if importlib.util.find_spec("mcp") is None:
        if settings.mcp.enabled is None:
            return None
        raise ExtraMissing("mcp.enabled", "mcp")
    from .mcp.factory import make_surface as make_mcp

    return make_mcp(settings, store, keys, keyring.jwt)
