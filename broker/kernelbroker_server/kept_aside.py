"""Files of the broker that cannot be used: they are renamed, logged and shown, and never removed."""

from __future__ import annotations

import logging
import time
from pathlib import Path

logger = logging.getLogger(__name__)

KEPT_ASIDE = ("damaged", "newer")
"""In the names of files that are kept aside."""


def set_aside(path: Path, sign: str, reason: object) -> Path:
    """Rename a file that cannot be used, and log it. Returns its new path. Raises OSError.

    Args:
        sign: `damaged` or `newer`.
    """
    target = path.with_name(f"{path.name}.{sign}-{time.strftime('%Y%m%d-%H%M%S')}")
    while target.exists():
        target = target.with_name(f"{target.name}x")
    path.rename(target)
    logger.error("%s cannot be used and is kept as %s: %s", path, target.name, reason)
    return target


def kept_aside(directory: Path) -> list[Path]:
    """The files in a directory that this broker or an earlier one has set aside."""
    return sorted(path for sign in KEPT_ASIDE for path in directory.glob(f"*.{sign}-*"))
