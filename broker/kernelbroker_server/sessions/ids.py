"""Ids of sessions and executions."""

from __future__ import annotations

import secrets


def new_id() -> str:
    """Return an id that cannot be guessed: 96 random bits as 24 hexadecimal digits."""
    return secrets.token_hex(12)
