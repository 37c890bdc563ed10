"""The `channels` WebSocket of a kernel."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kernelbroker.protocol.errors import BadRequest, ProtocolError
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError

from ..api.text_frames import WebSocket
from ..kernels.framing import SUBPROTOCOL
from ..sessions.session import Session
from .client import Client
from .handler import JupyterHandler
from .link import KernelLink
from .messages import decode_legacy, decode_v1, encode_legacy

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 8 * 1024**2
"""Of a client's message. The sandbox's gateway takes 10 MiB, and would end the session's own channel."""
_MAX_ID_CHARS = 256
_TOO_SLOW = "it reads too slowly, and misses messages"


class Channels(JupyterHandler, WebSocket):
    """One client's connection to a kernel."""

    _link: KernelLink | None = None
    _client: Client | None = None
    _pumping: asyncio.Task[None] | None = None
    _session: Session

    async def get(self, kernel_id: str, **_path: str) -> None:
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise BadRequest("this path speaks WebSocket: connect with a WebSocket client")
        self._session = await self.tenant.kernels.find(kernel_id)
        await super().get()

    def check_origin(self, origin: str) -> bool:
        """Refuse web pages of other origins; programs send no Origin header. Raises HTTPError."""
        if super().check_origin(origin) or origin.lower() in self.service.allowed_origins:
            return True
        raise HTTPError(403)

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return SUBPROTOCOL if SUBPROTOCOL in subprotocols else None

    @property
    def max_message_size(self) -> int:
        return _MAX_MESSAGE_BYTES

    def open(self, **_path: str) -> None:
        self.set_nodelay(True)
        self._link = self.links.of(self._session, self.tenant.kernels)
        name = self.get_query_argument("session_id", "")[:_MAX_ID_CHARS]
        self._client = client = self._link.join(name)
        self.service.websockets.add(self)
        self._pumping = asyncio.create_task(self._pump(client))

    def on_close(self) -> None:
        self.service.websockets.discard(self)
        if self._pumping is not None:
            self._pumping.cancel()
        if self._link is not None and self._client is not None:
            self._link.leave(self._client)

    async def on_message(self, message: str | bytes) -> None:
        assert self._link is not None
        assert self._client is not None
        decode = decode_legacy if self.selected_subprotocol is None else decode_v1
        try:
            decoded = decode(message)
        except ProtocolError as exc:
            logger.info("a Jupyter client sent garbage: %s", exc)
            self.close(1007, "this is not a message of Jupyter's protocol")
            return
        await self._link.take(self._client, decoded)

    async def last_words(self) -> None:
        """Wait until the client knows that its kernel has ended."""
        if self._pumping is not None and not self._session.is_left:
            await asyncio.wait([self._pumping])

    async def _pump(self, client: Client) -> None:
        """Send what comes for the client, until it leaves or nothing follows."""
        client.connect()
        is_legacy = self.selected_subprotocol is None
        # The gateway client of a Jupyter server stops to read at a binary message.
        only_text = self.request.headers.get("User-Agent", "").startswith("Tornado/")
        with contextlib.suppress(WebSocketClosedError, StreamClosedError):
            while (frame := await client.next()) is not None:
                message = encode_legacy(frame, only_text=only_text) if is_legacy else frame
                await self.write_message(message, binary=isinstance(message, bytes))
            if client.is_behind:
                self.close(1008, _TOO_SLOW)
            else:
                self.close(1001 if self.service.tenants.stopping else 1000, "the kernel has ended")
