"""Random keys that outlive the broker, as files in its state directory."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

_KEY_BYTES = 32
E2B_KEY, SEAL_KEY = "e2b-key", "seal-key"
"""The keys of E2B's access tokens, and of what MCP clients get to echo."""
LASTING_KEYS = (E2B_KEY, SEAL_KEY)


class DamagedKey(Exception):
    """The file has no key."""


def lasting_key(directory: Path | None, name: str) -> bytes:
    """Return the key with this name; a new one if there is none.

    Args:
        directory: the state directory; None for a key that ends with the broker.

    Raises:
        OSError
        DamagedKey
    """
    if directory is None:
        return secrets.token_bytes(_KEY_BYTES)
    path = directory / name
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:  # mode 0600
            file.write(secrets.token_bytes(_KEY_BYTES))
        Path(file.name).rename(path)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DamagedKey(f"{path} is damaged: remove it")
    return key
