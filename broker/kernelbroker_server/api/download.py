"""Answers with bytes that come from a sandbox: as an attachment, and streamed.

What comes out of a sandbox is nobody's page: no browser is to show it under the broker's address.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from ..kernels.transfer import Exchange
from .disconnect import Disconnectable

logger = logging.getLogger(__name__)

_SILENCE_S = 60.0
"""How long a client may take nothing."""
LARGE_BYTES = 1024 * 1024
"""From this size on a body goes past Tornado, which would copy each byte three times; the client's
connection ends with it."""


class Downloading(Disconnectable):
    """Sends what an exchange with a sandbox brings."""

    def compute_etag(self) -> None:
        """None: Tornado would make one of what is in memory."""

    async def send(self, body: Exchange, content_type: str, size: int | None) -> None:
        """Send the head and the exchange's body, of `size` bytes if that is known.

        Raises:
            TransferFailed: fewer bytes came.
            TimeoutError: the client took none of them for too long.
        """
        self.set_header("Content-Type", content_type)
        self.set_header("Content-Disposition", "attachment")
        self.set_header("Content-Security-Policy", "sandbox")
        self.set_header("Cache-Control", "no-store")
        if size is not None:
            self.set_header("Content-Length", str(size))
        if self.request.method == "HEAD":
            return
        if size is None or size < LARGE_BYTES or is_encrypted(self.request.connection):
            await self._pass_on(body)
        else:
            await self._pass_by(body)

    def hang_up(self) -> None:
        """Say, in the one way that is left, that less came than was announced."""
        connection: Any = self.request.connection
        if connection.stream is not None:
            connection.stream.close()

    async def _pass_on(self, body: Exchange) -> None:
        async with aclosing(body.chunks()) as chunks:
            async for chunk in chunks:
                self.write(chunk)
                async with asyncio.timeout(_SILENCE_S):
                    await self.flush()

    async def _pass_by(self, body: Exchange) -> None:
        self.set_header("Connection", "close")
        async with asyncio.timeout(_SILENCE_S):
            await self.flush()
        connection: Any = self.request.connection
        if connection.stream.closed():
            raise StreamClosedError
        stream: IOStream = self.detach()
        self._auto_finish = False  # the connection is ours now
        with stream.socket.dup() as client:
            stream.close()  # else it would read, too
            try:
                await body.pass_to(client, _SILENCE_S)
            finally:
                self.on_finish()


def is_encrypted(connection: Any) -> bool:
    """Whether the bytes of Tornado's connection are to be encrypted, and so must pass through us."""
    return isinstance(connection.stream, SSLIOStream)
