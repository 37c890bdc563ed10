"""The framing of streams to the broker: kind, length, content."""

from __future__ import annotations

import json
from struct import Struct

_HEAD = Struct("!cI")
ALIVE = _HEAD.pack(b"k", 0)
"""Sent when there was nothing else to send for a while."""


def frame(kind: bytes, content: bytes | object) -> bytes:
    """A frame: one byte for its kind, four for the length, and the content: bytes, or what becomes JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return _HEAD.pack(kind, len(body)) + body
