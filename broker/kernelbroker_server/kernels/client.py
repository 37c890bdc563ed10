"""The broker's channel to one sandbox's gateway: start its kernel, send, receive, interrupt.

HTTP for the two calls that Jupyter has as REST, a WebSocket for the rest. Whatever the other side
does (garbage, an endless frame, silence), this side ends the channel and tells why; it never hangs
and holds no more than a few messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Callable
from typing import Any, Self

from kernelbroker.protocol.errors import ProtocolError
from kernelbroker_kernel.contract import MAX_MESSAGE_BYTES
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest, HTTPResponse
from tornado.iostream import UnsatisfiableReadError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from .endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from .framing import SUBPROTOCOL, Incoming, Outgoing, decode_frame, encode_frame
from .transfer import Exchange

logger = logging.getLogger(__name__)

_FRAME_LIMIT = MAX_MESSAGE_BYTES + 64 * 1024
_HTTP_BODY_LIMIT = 64 * 1024
_INTERRUPT_TIMEOUT_S = 5.0
_UNREACHABLE = (
    OSError,
    HTTPError,
    WebSocketException,
    # An answer that is not a gateway's.
    UnsatisfiableReadError,
    ValueError,
    KeyError,
    TypeError,
    RecursionError,
)
_YIELD_EVERY = 64
"""Messages after which the reader lets others run: a flood from one kernel must not starve the rest."""


class ChannelClosed(Exception):
    """The channel to the gateway has ended; the message says how."""


class _FixedResolver(Resolver):
    """Sends every request to one address, whatever its URL says."""

    def initialize(self, *, address: tuple[int, Any]) -> None:
        self._address = address

    async def resolve(self, *_args: object, **_kwargs: object) -> list[tuple[int, Any]]:
        return [self._address]


class KernelClient:
    """One kernel, from started to closed.

    `on_message` is called, in the event loop, with each message as it comes; while it is None,
    messages are dropped. `closed` is resolved with the reason when nothing more will come.
    """

    def __init__(
        self, endpoint: Endpoint, http: AsyncHTTPClient, kernel_url: str, headers: dict[str, str]
    ) -> None:
        self._endpoint = endpoint
        self._http = http
        self._kernel_url = kernel_url
        self._headers = headers
        self._websocket: ClientConnection
        self._reader: asyncio.Task[None]
        self.on_message: Callable[[Incoming], None] | None = None
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout: float) -> Self:
        """Start the gateway's kernel and connect to its channels, within `timeout` seconds.

        Raises:
            ChannelClosed: the gateway does not answer, or not as one.
        """
        match endpoint:
            case UnixEndpoint(path=path):
                address: tuple[int, Any] = (socket.AF_UNIX, str(path))
                authority, headers = "gateway", {}
            case TcpEndpoint(host=host, port=port, token=token):
                address = (socket.AF_INET, (host, port))
                authority, headers = f"{host}:{port}", {"Authorization": f"token {token}"}
        http = SimpleAsyncHTTPClient(
            force_instance=True,
            resolver=_FixedResolver(address=address),
            max_body_size=_HTTP_BODY_LIMIT,
            max_header_size=_HTTP_BODY_LIMIT,
        )
        try:
            async with asyncio.timeout(timeout):
                response = await _fetch(
                    http,
                    HTTPRequest(
                        f"http://{authority}/api/kernels",
                        method="POST",
                        body="{}",
                        headers=headers,
                        request_timeout=timeout,
                        follow_redirects=False,
                    ),
                )
                kernel_id = json.loads(response.body)["id"]
                kernel_url = f"http://{authority}/api/kernels/{kernel_id}"
                self = cls(endpoint, http, kernel_url, headers)
                url = f"ws://{authority}/api/kernels/{kernel_id}/channels?session_id=broker"
                options: dict[str, Any] = {
                    "subprotocols": [Subprotocol(SUBPROTOCOL)],
                    "additional_headers": headers,
                    "compression": None,
                    "max_size": _FRAME_LIMIT,
                    "max_queue": 8,
                    "ping_interval": None,  # a busy gateway is not a dead one; its end closes the socket
                    "proxy": None,
                    "open_timeout": None,
                }
                if isinstance(endpoint, UnixEndpoint):
                    self._websocket = await unix_connect(str(endpoint.path), url, **options)
                else:
                    # With the address given twice, no redirect can lead elsewhere.
                    host, port = endpoint.host, endpoint.port
                    self._websocket = await connect(url, host=host, port=port, **options)
        except TimeoutError as exc:
            http.close()
            raise ChannelClosed(f"the gateway did not answer within {timeout:g} s") from exc
        except _UNREACHABLE as exc:
            http.close()
            raise ChannelClosed(f"the gateway could not be reached: {exc}") from exc
        except BaseException:
            http.close()
            raise
        self._reader = asyncio.create_task(self._read(), name="kernel-reader")
        return self

    async def send(self, message: Outgoing) -> None:
        """Send one message.

        Raises:
            ChannelClosed: it cannot be delivered any more.
        """
        try:
            await self._websocket.send(encode_frame(message, "broker"))
        except (WebSocketException, OSError) as exc:
            raise ChannelClosed(f"the gateway closed the channel: {exc}") from exc

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, in `await` too (ipykernel issue 881).

        Returns when the signal was sent; whether it helped shows in the cell's reply.
        """
        with contextlib.suppress(*_UNREACHABLE):
            await _fetch(
                self._http,
                HTTPRequest(
                    f"{self._kernel_url}/interrupt",
                    method="POST",
                    body="",
                    headers=self._headers,
                    request_timeout=_INTERRUPT_TIMEOUT_S,
                ),
            )
        with contextlib.suppress(ChannelClosed):
            # The signal alone does not wake the kernel's event loop; any message on shell does.
            await self.send(Outgoing("shell", "kernel_info_request", {}))

    async def request(
        self, method: str, target: str, headers: dict[str, str] | None = None
    ) -> Exchange:
        """Ask the gateway for something else than an execution, at any time. See `Exchange.open`."""
        return await Exchange.open(self._endpoint, method, target, headers)

    async def close(self) -> None:
        """Let go of the channel; never raises, and waits for nothing that the other side could withhold."""
        self._websocket.transport.abort()
        self._reader.cancel()
        await asyncio.wait([self._reader])
        if not self.closed.done():  # the reader had not begun
            self.closed.set_result("the channel was closed")
        self._http.close()

    async def _read(self) -> None:
        reason = "the channel was closed"
        try:
            count = 0
            async for frame in self._websocket:
                message = decode_frame(frame)
                if self.on_message is not None:
                    self.on_message(message)
                count += 1
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            reason = "the gateway closed the channel"
        except ProtocolError as exc:
            reason = f"the sandbox sent what is not a Jupyter message: {exc}"
        except (WebSocketException, OSError) as exc:
            reason = f"the gateway closed the channel: {exc}"
        except Exception:
            logger.exception("the reader of a kernel's messages failed")
            reason = "a fault of the broker's own"
        finally:
            self._websocket.transport.abort()
            if not self.closed.done():
                self.closed.set_result(reason)


async def _fetch(http: AsyncHTTPClient, request: HTTPRequest) -> HTTPResponse:
    """Carry out a request. If the caller is cancelled, it ends unnoticed.

    Else Tornado would log, as an error, what goes wrong with a request that nobody waits for.
    """
    answer = http.fetch(request)
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved
    return await asyncio.shield(answer)
