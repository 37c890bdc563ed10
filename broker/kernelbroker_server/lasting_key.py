"""Keys that outlive the broker: files in its state directory, or made of the secret of several brokers."""

from __future__ import annotations

import hmac
import secrets
import tempfile
from pathlib import Path

_KEY_BYTES = 32
E2B_KEY, SEAL_KEY = "e2b-key", "seal-key"
"""The keys of E2B's access tokens, and of what MCP clients get to echo."""
LASTING_KEYS = (E2B_KEY, SEAL_KEY)


class DamagedKey(Exception):
    """The file has no key."""


def lasting_key(source: Path | bytes | None, name: str) -> bytes:
    """Return the key with this name; a new one if there is none.

    Args:
        source: the state directory, or the secret of brokers that share a store; None for a key that ends
            with the broker.

    Raises:
        OSError
        DamagedKey
    """
    if source is None:
        return secrets.token_bytes(_KEY_BYTES)
    if isinstance(source, bytes):
        return hmac.digest(source, f"key {name}".encode(), "sha256")
    path = source / name
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=source, delete=False) as file:  # mode 0600
            file.write(secrets.token_bytes(_KEY_BYTES))
        Path(file.name).rename(path)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DamagedKey(f"{path} is damaged: remove it")
    return key
