"""The connection to one sandbox's gateway: its HTTP interface, and the channels of its kernels.

Starting a kernel and interrupting it are HTTP requests; everything else goes over the kernel's channel.
If the other side sends garbage, endless headers or nothing, a call ends with `ChannelClosed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker_kernel.contract import CHANNELS_AFTER, KERNELS_PATH, MAX_MESSAGE_BYTES
from tornado.httpclient import HTTPError, HTTPRequest, HTTPResponse
from tornado.iostream import UnsatisfiableReadError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from .channel import ChannelClosed, KernelChannel
from .endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from .framing import SUBPROTOCOL
from .transfer import GatewayRequest
from .tunnel import Tunnel, tunnel

_FRAME_LIMIT = MAX_MESSAGE_BYTES + 64 * 1024
_HTTP_BODY_LIMIT = 64 * 1024
_INTERRUPT_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 15.0
_KERNEL_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
_UNREACHABLE = (
    OSError,
    HTTPError,
    WebSocketException,
    msgspec.MsgspecError,
    # The answer does not come from a gateway.
    UnsatisfiableReadError,
    ValueError,
    KeyError,
    TypeError,
    RecursionError,
)


class _Started(msgspec.Struct):
    """The answer to the start of a kernel."""

    id: str


class _Hello(msgspec.Struct):
    """What the gateway says first to a broker that goes on; see `contract.CHANNELS_AFTER`."""

    received: int
    first: int


@contextlib.contextmanager
def _unreachable(timeout: float) -> Iterator[None]:
    """Translate the errors of an attempt to reach the gateway."""
    try:
        yield
    except TimeoutError as exc:
        raise ChannelClosed(f"the gateway did not answer within {timeout:g} s") from exc
    except _UNREACHABLE as exc:
        raise ChannelClosed(f"the gateway could not be reached: {exc}") from exc


class _FixedResolver(Resolver):
    """Resolves every host name to one address."""

    def initialize(self, *, address: tuple[int, Any]) -> None:
        self._address = address

    async def resolve(self, *_args: object, **_kwargs: object) -> list[tuple[int, Any]]:
        return [self._address]


class GatewayConnection:
    """One sandbox's gateway, until `close`. Nothing is sent before `start_kernel`.

    Attributes:
        channels: the channels of the kernels that were started.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.channels: list[KernelChannel] = []
        self._endpoint = endpoint
        self._tls: ssl.SSLContext | None = None
        match endpoint:
            case UnixEndpoint(path=path):
                address: tuple[int, Any] = (socket.AF_UNIX, str(path))
                self._authority = "gateway"
            case TcpEndpoint(host=host, port=port, tls=tls):
                address, self._tls = (socket.AF_INET, (host, port)), tls
                self._authority = f"{host}:{port}"
        self._headers = dict(endpoint.headers)
        self._http = SimpleAsyncHTTPClient(
            force_instance=True,
            resolver=_FixedResolver(address=address),
            max_body_size=_HTTP_BODY_LIMIT,
            max_header_size=_HTTP_BODY_LIMIT,
        )

    async def start_kernel(self, timeout: float, kernel_id: str | None = None) -> KernelChannel:
        """Start a kernel and open its channel, within `timeout` seconds.

        Args:
            kernel_id: a UUID for it; the gateway makes one if None.

        Raises:
            ChannelClosed: the gateway does not answer, or not as a gateway.
        """
        body = json.dumps({} if kernel_id is None else {"kernel_id": kernel_id})
        with _unreachable(timeout):
            async with asyncio.timeout(timeout):
                response = await self._post("/api/kernels", timeout=timeout, body=body)
                kernel_id = decode_json(response.body, _Started).id
                if not _KERNEL_ID.fullmatch(kernel_id):
                    raise ValueError("the kernel has no valid id")
                websocket = await self._connect(kernel_id, "")
        return self._add(KernelChannel(kernel_id, websocket, self._interrupt))

    async def join_kernel(
        self, kernel_id: str, timeout: float, after: int | None = None
    ) -> KernelChannel:
        """Open the channel of a kernel that an earlier broker has started, within `timeout` seconds.

        Args:
            after: the number of the last message that was received of it. The channel holds those that
                follow until its `release`. By default they are not needed.

        Raises:
            ChannelClosed: as `start_kernel`, or messages that follow `after` are not there any more.
        """
        websocket, hello = await self._join(kernel_id, timeout, after)
        return self._add(
            KernelChannel(
                kernel_id,
                websocket,
                self._interrupt,
                sent=hello.received,
                received=hello.first - 1,
                held=after is not None,
            )
        )

    async def detach(self) -> None:
        """Close all connections to the gateway, until `attach`. Nobody else may use it meanwhile."""
        for channel in self.channels:
            await channel.detach()

    async def attach(self, timeout: float, kernel_id: str | None = None) -> None:
        """Connect the channels again, after `detach`.

        Args:
            timeout: seconds, for each.
            kernel_id: of another kernel, which has taken the place of the first one. Earlier messages of
                it are not needed.

        Raises:
            ChannelClosed: the gateway could not be reached; the channels are closed.
        """
        try:
            for channel in self.channels:
                name = kernel_id or channel.kernel_id
                after = None if kernel_id else channel.received
                websocket, hello = await self._join(name, timeout, after)
                channel.attach(websocket, name, hello.received, hello.first - 1)
        except ChannelClosed:
            await self.close()
            raise

    async def _join(
        self, kernel_id: str, timeout: float, after: int | None
    ) -> tuple[ClientConnection, _Hello]:
        """Connect to a kernel that runs. Raises ChannelClosed."""
        with _unreachable(timeout):
            async with asyncio.timeout(timeout):
                query = "" if after is None else f"&{CHANNELS_AFTER}={after}"
                websocket = await self._connect(kernel_id, query)
                hello = decode_json(await websocket.recv(), _Hello)
        if after is not None and hello.first != after + 1:
            websocket.transport.abort()
            raise ChannelClosed(
                f"its output from message {after + 1} on is needed, and begins at {hello.first}"
            )
        return websocket, hello

    def _add(self, channel: KernelChannel) -> KernelChannel:
        self.channels.append(channel)
        return channel

    async def end_kernel(self, kernel_id: str) -> None:
        """End a kernel that is not the first one, with its processes. Never raises.

        Returns when it has ended, or when the gateway does not answer in time.
        """
        for channel in [each for each in self.channels if each.kernel_id == kernel_id]:
            await channel.close()
            self.channels.remove(channel)
        with contextlib.suppress(*_UNREACHABLE):
            await self._send("DELETE", f"{KERNELS_PATH}/{kernel_id}", timeout=_END_TIMEOUT_S)

    async def request(
        self, method: str, target: str, headers: dict[str, str] | None = None
    ) -> GatewayRequest:
        """Send any other request, at any time, on a new connection.

        See `GatewayRequest.open`.
        """
        return await GatewayRequest.open(self._endpoint, method, target, headers)

    def tunnel(self, port: int) -> contextlib.AbstractAsyncContextManager[Tunnel]:
        """Connect to a server inside the sandbox; see `tunnel.tunnel`."""
        return tunnel(self._endpoint, port)

    async def close(self) -> None:
        """Close all channels. Never raises, and does not wait for the gateway."""
        for channel in self.channels:
            await channel.close()
        self._http.close()

    async def _connect(self, kernel_id: str, query: str) -> ClientConnection:
        scheme = "ws" if self._tls is None else "wss"
        url = f"{scheme}://{self._authority}/api/kernels/{kernel_id}/channels?session_id=broker{query}"
        options: dict[str, Any] = {
            "subprotocols": [Subprotocol(SUBPROTOCOL)],
            "additional_headers": self._headers,
            "compression": None,
            "max_size": _FRAME_LIMIT,
            "max_queue": 8,
            "ping_interval": None,  # a busy gateway must not be treated as dead; its end closes the socket
            "proxy": None,
            "open_timeout": None,
        }
        match self._endpoint:
            case UnixEndpoint(path=path):
                return await unix_connect(str(path), url, **options)
            case TcpEndpoint(host=host, port=port):
                # With the address given twice, no redirect can lead elsewhere.
                return await connect(url, host=host, port=port, ssl=self._tls, **options)

    async def _interrupt(self, kernel_id: str) -> None:
        with contextlib.suppress(*_UNREACHABLE):
            await self._post(f"/api/kernels/{kernel_id}/interrupt", timeout=_INTERRUPT_TIMEOUT_S)

    async def _post(self, path: str, *, timeout: float, body: str = "") -> HTTPResponse:
        return await self._send("POST", path, timeout=timeout, body=body)

    async def _send(
        self, method: str, path: str, *, timeout: float, body: str | None = None
    ) -> HTTPResponse:
        """Send a request.

        If the caller is cancelled, an error of the request is ignored, which Tornado would log otherwise.
        """
        scheme = "http" if self._tls is None else "https"
        request = HTTPRequest(
            f"{scheme}://{self._authority}{path}",
            method=method,
            body=body,
            headers=self._headers,
            request_timeout=timeout,
            follow_redirects=False,
            ssl_options=self._tls,
        )
        answer = self._http.fetch(request)
        answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # the exception is retrieved
        return await asyncio.shield(answer)
