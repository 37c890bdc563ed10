"""Keeps a credential that a server sends back from the sandbox.

Some servers answer with the header fields that they got. The credential is replaced by as many asterisks,
so that lengths stay as announced. A server that encodes it in another way is not understood.
"""

from __future__ import annotations

from collections.abc import Iterable

LEAST_CHARS = 8
"""Shorter texts occur in answers by chance."""


class CredentialMask:
    """Masks one answer. Not masked: texts of fewer than `LEAST_CHARS` bytes."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        known = {each for each in secrets if len(each) >= LEAST_CHARS}
        self._secrets = sorted(known, key=len, reverse=True)  # one may begin with another one
        self._held = b""

    def masked(self, text: bytes) -> bytes:
        """Return a whole text without the credentials."""
        for secret in self._secrets:
            text = text.replace(secret, b"*" * len(secret))
        return text

    def piece(self, data: bytes) -> bytes:
        """Return what can be sent of a piece of the body; what may begin a credential waits."""
        if not self._secrets:
            return data
        text = self.masked(self._held + data)
        held = max((_overlap(text, secret) for secret in self._secrets), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> bytes:
        """Return what waits, at the end of the body."""
        held, self._held = self._held, b""
        return held


def _overlap(text: bytes, secret: bytes) -> int:
    """The length of the longest end of the text that the secret begins with."""
    longest = min(len(text), len(secret) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(secret[:size])), 0)
