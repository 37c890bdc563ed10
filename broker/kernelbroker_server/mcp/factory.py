"""Creates the MCP surface from the broker's settings."""

from __future__ import annotations

import secrets
import tempfile
from importlib.metadata import version
from pathlib import Path

from ..config import ConfigError, Settings
from ..sessions.store import EventStore
from ..tenants.jwt_tokens import JwtTokens
from .analysis_model import load_model
from .call import Options
from .handler import allowed_hosts
from .surface import McpSurface

SEAL_KEY = "seal-key"
"""In the state directory: the key of what clients get to echo."""
_KEY_BYTES = 32


def make_surface(
    settings: Settings, store: EventStore, state_dir: Path | None, jwt: JwtTokens | None
) -> McpSurface:
    """Return the MCP server, not started.

    Args:
        state_dir: the directory of what outlives the broker; None if nothing is kept on the disk.
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
        keys=[secrets.token_bytes(_KEY_BYTES) if state_dir is None else _seal_key(state_dir)],
        options=Options(
            settings.mcp.task_after,
            settings.sessions.result_retention,
            settings.mcp.language,
            model,
        ),
        hosts=allowed_hosts(
            settings.host, on_loopback=settings.on_loopback, named=settings.mcp.allowed_hosts
        ),
        issuer=None if jwt is None else jwt.issuer,
    )


def _seal_key(directory: Path) -> bytes:
    """The key of the broker's seals; a new one if there is none."""
    path = directory / SEAL_KEY
    try:
        if not path.exists():
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:  # mode 0600
                file.write(secrets.token_bytes(_KEY_BYTES))
            Path(file.name).rename(path)
        key = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"state_dir: {path}: {exc.strerror}") from exc
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"state_dir: {path} is damaged: remove it")
    return key
