"""Creates the MCP surface from the broker's settings."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from ..config import ConfigError, Settings
from ..lasting_key import SEAL_KEY, lasting_key
from ..sessions.store import EventStore
from ..tenants.jwt_tokens import JwtTokens
from .analysis_model import load_model
from .call import Options
from .handler import allowed_hosts
from .surface import McpSurface


def make_surface(
    settings: Settings, store: EventStore, keys: Path | bytes | None, jwt: JwtTokens | None
) -> McpSurface:
    """Return the MCP server, not started.

    Args:
        keys: see `lasting_key`.
        jwt: the issuer whose tokens are accepted.

    Raises:
        ConfigError: the key in the state directory cannot be read, or there is no such model.
    """
    try:
        model = load_model(settings.mcp.model)
    except ValueError as exc:
        raise ConfigError(f"mcp.model: {exc}") from exc
    return McpSurface(
        settings.mcp.tool_sets,
        store,
        version=version("kernelbroker"),
        keys=[_seal_key(keys)],
        options=Options(
            settings.mcp.task_after,
            settings.sessions.result_retention,
            settings.mcp.language,
            model,
            settings.mcp.unnamed_idle_timeout,
        ),
        hosts=allowed_hosts(
            settings.host, on_loopback=settings.on_loopback, named=settings.mcp.allowed_hosts
        ),
        issuer=None if jwt is None else jwt.issuer,
    )


def _seal_key(keys: Path | bytes | None) -> bytes:
    try:
        return lasting_key(keys, SEAL_KEY)
    except OSError as exc:
        raise ConfigError(f"state_dir: {exc.filename}: {exc.strerror}") from exc
