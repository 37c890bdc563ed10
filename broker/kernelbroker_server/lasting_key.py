"""Keys that outlive the broker: files in its state directory, or made of the secret of several brokers."""

from __future__ import annotations

import hmac
import secrets
import tempfile
from pathlib import Path

from .kept_aside import set_aside

_KEY_BYTES = 32
E2B_KEY, SEAL_KEY = "e2b-key", "seal-key"
"""The keys of E2B's access tokens, and of what MCP clients get to echo."""
LASTING_KEYS = (E2B_KEY, SEAL_KEY)


class DamagedKey(Exception):
    """The file has no key."""


def lasting_key(source: Path | bytes | None, name: str) -> bytes:
    """Return the key with this name; a new one if there is none, or only what is left of one.

    Args:
        source: the state directory, or the secret of brokers that share a store; None for a key that ends
            with the broker.

    Raises:
        OSError
    """
    if source is None:
        return secrets.token_bytes(_KEY_BYTES)
    if isinstance(source, bytes):
        return hmac.digest(source, f"key {name}".encode(), "sha256")
    path = source / name
    try:
        return read_key(path)
    except FileNotFoundError:
        pass
    except DamagedKey as exc:
        set_aside(path, "damaged", exc)
    with tempfile.NamedTemporaryFile(dir=source, delete=False) as file:  # mode 0600
        file.write(secrets.token_bytes(_KEY_BYTES))
    Path(file.name).rename(path)
    return read_key(path)


def read_key(path: Path) -> bytes:
    """Return the key in a file.

    Raises:
        OSError
        DamagedKey
    """
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DamagedKey(f"{path} is no key of {_KEY_BYTES} bytes")
    return key
