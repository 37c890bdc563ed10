"""The names of this project's images in a registry: used by the broker, and by the engine filter."""

from __future__ import annotations

import re


def qualify(name: str, prefix: str, version: str) -> str:
    """Return the name of an image with registry and version, if it is one of this project without them.

    Args:
        name: such as `kernelbroker-kernel`; any other name is returned as it is.
        prefix: a registry and a path that end with a slash, or nothing.
        version: the tag, or nothing.
    """
    if not re.fullmatch(r"kernelbroker-[a-z0-9-]+", name):
        return name
    return f"{prefix}{name}:{version}" if version else f"{prefix}{name}"


def repository(name: str) -> str:
    """Return the name of an image without its tag or digest."""
    head, slash, last = name.partition("@")[0].rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def tag(name: str) -> str:
    """Return the tag of an image, or the engine's default."""
    return name.partition("@")[0].rpartition("/")[2].partition(":")[2] or "latest"
