"""A connected WebSocket, as the broker's shutdown sees it."""

from __future__ import annotations

from typing import Protocol


class OpenWebSocket(Protocol):
    """The interface of a connected WebSocket for the broker's shutdown."""

    async def last_words(self) -> None:
        """Wait until the client has received the end of its session."""

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Send a close frame."""
