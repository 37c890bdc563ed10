"""Carries the messages of a native WebSocket to the broker that owns its session.

Only the first message of such a connection names the session, so it has been accepted already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kernelbroker.protocol.errors import Unavailable
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from .pass_on import Target

_OPEN_S = 10.0
_MAX_MESSAGE = 64 * 1024**2
_ATTEMPTS = 50
_RETRY_S = 0.1


class Relay:
    """A connection to the owner, from `open` until either side closes."""

    def __init__(self, websocket: ClientConnection, owner: Target) -> None:
        self._websocket = websocket
        self._owner = owner

    @classmethod
    async def open(
        cls, choose: Callable[[], Awaitable[Target | None]], path: str, headers: Mapping[str, str]
    ) -> Relay | None:
        """Connect to the owner.

        Args:
            choose: returns where it is; None if it is this broker.

        Returns:
            None if this broker is the owner.

        Raises:
            Unavailable
        """
        for _ in range(_ATTEMPTS):
            if (owner := await choose()) is None:
                return None
            options: dict[str, Any] = {
                "additional_headers": dict(headers),
                "compression": None,
                "max_size": _MAX_MESSAGE,
                "open_timeout": _OPEN_S,
                "proxy": None,
            }
            try:
                url = f"ws{owner.url.removeprefix('http')}{path}"
                return cls(await connect(url, **options), owner)
            except InvalidStatus as exc:
                if exc.response.status_code != 421:  # it has just moved
                    raise Unavailable(
                        f"the broker of the session refused: {exc.response.status_code}",
                        retry_after=1,
                    ) from exc
            except (OSError, WebSocketException):
                pass
            await asyncio.sleep(_RETRY_S)
        raise Unavailable("the broker of the session does not answer", retry_after=1)

    async def send(self, message: str | bytes) -> None:
        """Pass a message on to the owner."""
        with contextlib.suppress(ConnectionClosed):
            await self._websocket.send(message)

    async def run(
        self,
        write: Callable[[str | bytes], Awaitable[None]],
        close: Callable[[int | None, str | None], None],
    ) -> None:
        """Pass the owner's messages on to the client until the owner closes the connection."""
        losing = asyncio.create_task(self._abort_when_lost())
        try:
            async for message in self._websocket:
                await write(message)
        except ConnectionClosed:
            pass
        finally:
            losing.cancel()
            code = self._websocket.close_code
            close(1001 if code in (None, 1006) else code, self._websocket.close_reason or None)

    async def _abort_when_lost(self) -> None:
        if self._owner.lost is not None:
            await self._owner.lost()
            self.abort()

    def abort(self) -> None:
        """The client has gone."""
        self._websocket.transport.abort()
