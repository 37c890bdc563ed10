"""How a broker proves to another one that a request comes from a broker.

Each request that is passed on has a header with the time, the sender, and an HMAC of these, the method and
the path. The time is that of the database, so the clocks of the machines do not matter.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

HOP_HEADER = "X-Kernelbroker-Hop"
_VALID_S = 60.0
"""How long the header may be on its way."""


class Hop:
    """Makes and checks the header.

    Args:
        secret: what all brokers share.
        now: returns the time that all brokers share, in seconds.
    """

    def __init__(self, secret: str, now: Callable[[], float]) -> None:
        self._secret = secret.encode()
        self._now = now

    def header(self, broker: int, method: str, path: str) -> str:
        """Return the value of the header."""
        head = f"{int(self._now())}.{broker}"
        return f"{head}.{self._mac(head, method, path)}"

    def is_valid(self, value: str | None, method: str, path: str) -> bool:
        """Whether a broker has sent the request."""
        if value is None:
            return False
        head, _, mac = value.rpartition(".")
        at = head.partition(".")[0]
        if not (at.isascii() and at.isdigit() and len(at) < 15):
            return False
        is_recent = abs(self._now() - int(at)) <= _VALID_S
        return is_recent and hmac.compare_digest(
            mac.encode(), self._mac(head, method, path).encode()
        )

    def _mac(self, head: str, method: str, path: str) -> str:
        text = f"{head} {method} {path}".encode("utf-8", "replace")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()
