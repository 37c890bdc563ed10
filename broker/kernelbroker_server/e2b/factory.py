"""Creates the E2B surface from the broker's settings."""

from __future__ import annotations

from pathlib import Path

from ..config import ConfigError, Settings
from ..lasting_key import E2B_KEY, lasting_key
from .access import AccessTokens
from .surface import E2bSurface
from .surface_options import SurfaceOptions


def make_surface(settings: Settings, keys: Path | bytes | None) -> E2bSurface:
    """Return the E2B surface.

    Args:
        keys: see `lasting_key`.

    Raises:
        ConfigError: the key in the state directory cannot be read.
    """
    try:
        key = lasting_key(keys, E2B_KEY)
    except OSError as exc:
        raise ConfigError(f"state_dir: {exc.filename}: {exc.strerror}") from exc
    return E2bSurface(
        SurfaceOptions(AccessTokens(key), settings.e2b.templates, settings.e2b.domains)
    )
