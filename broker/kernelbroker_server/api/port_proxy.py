"""Passes requests on to a server that user code has started in a sandbox: HTTP, streamed, and WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
from collections.abc import AsyncIterator
from typing import Any

import h11
from kernelbroker.protocol.errors import BadRequest, RequestError
from tornado.iostream import IOStream, StreamClosedError

from ..cancellation import run_to_completion
from ..kernels.transfer import TransferFailed
from ..kernels.tunnel import BUFFER_BYTES, Tunnel
from ..service import ports
from ..sessions.session import Session
from .base import Authenticated
from .disconnect import Disconnectable
from .port_headers import to_client, to_server

logger = logging.getLogger(__name__)

_UNLIMITED = 2**62
_CLIENT_TIMEOUT_S = 60.0
"""How long a client may read nothing."""
_HEAD_BYTES = 64 * 1024
_MAX_INTERIM_RESPONSES = 10


class PortProxy(Authenticated, Disconnectable):
    """Call `begin` in `prepare`, and `relay` when Tornado has read the request's body."""

    _stack: contextlib.AsyncExitStack | None = None
    _is_answered_early = False

    def compute_etag(self) -> None:
        """Return None. Tornado's ETag would need the whole body in memory."""

    def authorization_is_for_server(self) -> bool:
        """Whether the Authorization header has nothing to do with the broker."""
        return False

    async def begin(self, session: Session, port: int, target: str) -> None:
        """Connect, and send the head of the request.

        Args:
            target: path and query, as the server sees them.

        Raises:
            Conflict, Unavailable, SessionGone, TooManyRequests: as `ports.connect`.
            BadRequest: the request cannot be passed on.
        """
        connection: Any = self.request.connection
        connection.set_max_body_size(_UNLIMITED)
        connection.set_body_timeout(_UNLIMITED)
        length = self.body_length()
        headers = to_server(
            self.request.headers,
            port=port,
            host=self.request.host,
            protocol=self.request.protocol,
            authorization=self.authorization_is_for_server(),
        )
        if self._is_upgrade():
            headers += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        else:
            headers.append(("Connection", "close"))
        if length is None:
            headers.append(("Transfer-Encoding", "chunked"))
        elif length or self.request.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(length)))
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        try:
            head = self._http.send(
                h11.Request(method=str(self.request.method), target=target, headers=headers)
            )
        except h11.LocalProtocolError as exc:
            raise BadRequest(f"the request cannot be passed on: {exc}") from exc
        stack = contextlib.AsyncExitStack()
        self._tunnel = await stack.enter_async_context(ports.connect(session, port))
        self._stack = stack
        await self._write(head)

    async def data_received(self, chunk: bytes) -> None:
        if self._stack is not None:
            await self._write(self._http.send(h11.Data(data=chunk)))

    async def relay(self) -> None:
        """Send the end of the request, and then the answer to the client."""
        try:
            async with self.until_disconnected():
                await self._write(self._http.send(h11.EndOfMessage()))
                await self._relay_answer()
        except (RequestError, TransferFailed, TimeoutError) as exc:
            if not self._headers_written:
                raise
            logger.info("the answer of a server in a sandbox broke off: %s", exc)
            self._hang_up()
        finally:
            await self._close()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._stack is not None:
            self._tunnel.writer.transport.abort()

    def on_finish(self) -> None:
        super().on_finish()
        if self._stack is not None:  # `relay` was not reached
            asyncio.ensure_future(self._close())  # noqa: RUF006  it closes a socket, and waits for nothing

    def _is_upgrade(self) -> bool:
        headers = self.request.headers
        return self.request.method == "GET" and headers.get("Upgrade", "").lower() == "websocket"

    async def _close(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await run_to_completion(stack.aclose())

    async def _write(self, data: bytes | None) -> None:
        if not data or self._is_answered_early:
            return
        try:
            self._tunnel.writer.write(data)
            await self._tunnel.writer.drain()
        except OSError:  # it does not read the body; it may have answered all the same
            self._is_answered_early = True

    async def _relay_answer(self) -> None:
        answer = await self._head()
        if isinstance(answer, h11.InformationalResponse):
            await self._switch(answer)
            return
        self.set_status(answer.status_code, _reason(answer.status_code))
        self.clear_header("Content-Type")
        self._pass_headers(answer)
        length = next((v.decode() for n, v in answer.headers if n == b"content-length"), None)
        if length is not None and answer.status_code not in (204, 304):
            self.set_header("Content-Length", length)
        if self.request.method != "HEAD":
            async for data in self._body():
                self.write(data)
                async with asyncio.timeout(_CLIENT_TIMEOUT_S):
                    await self.flush()
        self.finish()

    def _pass_headers(self, answer: h11.Response | h11.InformationalResponse) -> None:
        headers = [(n.decode("latin-1").title(), v.decode("latin-1")) for n, v in answer.headers]
        self.clear_header("X-Content-Type-Options")
        for name, value in to_client(headers):
            self.add_header(name, value)

    async def _head(self) -> h11.Response | h11.InformationalResponse:
        """The head of the answer: a final one, or status 101."""
        for _ in range(_MAX_INTERIM_RESPONSES):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    return event
                continue
            break
        raise TransferFailed("it did not answer with HTTP")

    async def _body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next_event(), h11.Data):
            yield bytes(event.data)

    async def _next_event(self) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._tunnel.reader.read(BUFFER_BYTES))
        except h11.RemoteProtocolError as exc:
            raise TransferFailed(f"it broke the HTTP protocol: {exc}") from exc
        except OSError as exc:
            raise TransferFailed("it hung up") from exc
        return event

    async def _switch(self, answer: h11.InformationalResponse) -> None:
        """Pass on the bytes of a WebSocket in both directions, until one side ends."""
        if not self._is_upgrade():
            raise TransferFailed("it changed the protocol, which it was not asked for")
        rest, _ = self._http.trailing_data
        self.set_status(101)
        self.clear()
        self.set_status(101)
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [
            f"{name.decode('latin-1')}: {value.decode('latin-1')}"
            for name, value in answer.headers
            if name.startswith(b"sec-websocket-")
        ]
        client = self.detach()
        try:
            await client.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + rest)
            await _both_ways(client, self._tunnel)
        except (StreamClosedError, OSError):
            pass
        finally:
            client.close()

    def _hang_up(self) -> None:
        connection: Any = self.request.connection
        if connection.stream is not None:
            connection.stream.close()


async def _both_ways(client: IOStream, tunnel: Tunnel) -> None:
    async def inwards() -> None:
        while True:
            tunnel.writer.write(await client.read_bytes(BUFFER_BYTES, partial=True))
            await tunnel.writer.drain()

    async def outwards() -> None:
        while data := await tunnel.reader.read(BUFFER_BYTES):
            await client.write(data)

    tasks = [asyncio.create_task(each) for each in (inwards(), outwards())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
