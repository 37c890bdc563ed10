"""Responses whose bytes come from a workspace or a sandbox: streamed, and always sent as an attachment.

Sandbox content is untrusted. No browser may render it under the broker's origin.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from ..service.files import Body
from .disconnect import Disconnectable

logger = logging.getLogger(__name__)

_CLIENT_TIMEOUT_S = 60.0
"""How long a client may read nothing."""


class Downloading(Disconnectable):
    """Streams content that user code may have made to the client."""

    def compute_etag(self) -> None:
        """Return None. Tornado's ETag would need the whole body in memory."""

    async def send(self, body: Body, content_type: str, size: int | None) -> None:
        """Send the response headers, then the body.

        Args:
            size: length of the body in bytes; None if unknown.

        Raises:
            TransferFailed: the sandbox sent fewer bytes than it announced.
            TimeoutError: the client stopped reading.
        """
        self.set_header("Content-Type", content_type)
        self.set_header("Content-Disposition", "attachment")
        self.set_header("Content-Security-Policy", "sandbox")
        self.set_header("Cache-Control", "no-store")
        if size is not None:
            self.set_header("Content-Length", str(size))
        if self.request.method == "HEAD":
            return
        async with aclosing(body.chunks()) as chunks:
            async for chunk in chunks:
                self.write(chunk)
                async with asyncio.timeout(_CLIENT_TIMEOUT_S):
                    await self.flush()
