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
from typing import Any

from kernelbroker_kernel.contract import MAX_MESSAGE_BYTES
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

_FRAME_LIMIT = MAX_MESSAGE_BYTES + 64 * 1024
_HTTP_BODY_LIMIT = 64 * 1024
_INTERRUPT_TIMEOUT_S = 5.0
_KERNEL_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
_UNREACHABLE = (
    OSError,
    HTTPError,
    WebSocketException,
    # The answer does not come from a gateway.
    UnsatisfiableReadError,
    ValueError,
    KeyError,
    TypeError,
    RecursionError,
)


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
        match endpoint:
            case UnixEndpoint(path=path):
                address: tuple[int, Any] = (socket.AF_UNIX, str(path))
                self._authority, self._headers = "gateway", {}
            case TcpEndpoint(host=host, port=port, token=token):
                address = (socket.AF_INET, (host, port))
                self._authority = f"{host}:{port}"
                self._headers = {"Authorization": f"token {token}"}
        self._http = SimpleAsyncHTTPClient(
            force_instance=True,
            resolver=_FixedResolver(address=address),
            max_body_size=_HTTP_BODY_LIMIT,
            max_header_size=_HTTP_BODY_LIMIT,
        )

    async def start_kernel(self, timeout: float) -> KernelChannel:
        """Start a kernel and open its channel, within `timeout` seconds.

        Raises:
            ChannelClosed: the gateway does not answer, or not as a gateway.
        """
        return await self.join_kernel(None, timeout)

    async def join_kernel(self, kernel_id: str | None, timeout: float) -> KernelChannel:
        """Open the channel of a kernel that was started earlier; None starts one. See `start_kernel`."""
        try:
            async with asyncio.timeout(timeout):
                if kernel_id is None:
                    response = await self._post("/api/kernels", timeout=timeout, body="{}")
                    kernel_id = json.loads(response.body)["id"]
                    if not _KERNEL_ID.fullmatch(kernel_id):
                        raise ValueError("the kernel has no valid id")
                websocket = await self._connect(kernel_id)
        except TimeoutError as exc:
            raise ChannelClosed(f"the gateway did not answer within {timeout:g} s") from exc
        except _UNREACHABLE as exc:
            raise ChannelClosed(f"the gateway could not be reached: {exc}") from exc
        name = kernel_id
        channel = KernelChannel(name, websocket, lambda: self._interrupt(name))
        self.channels.append(channel)
        return channel

    async def request(
        self, method: str, target: str, headers: dict[str, str] | None = None
    ) -> GatewayRequest:
        """Send any other request, at any time, on a new connection.

        See `GatewayRequest.open`.
        """
        return await GatewayRequest.open(self._endpoint, method, target, headers)

    async def close(self) -> None:
        """Close all channels. Never raises, and does not wait for the gateway."""
        for channel in self.channels:
            await channel.close()
        self._http.close()

    async def _connect(self, kernel_id: str) -> ClientConnection:
        url = f"ws://{self._authority}/api/kernels/{kernel_id}/channels?session_id=broker"
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
                return await connect(url, host=host, port=port, **options)

    async def _interrupt(self, kernel_id: str) -> None:
        with contextlib.suppress(*_UNREACHABLE):
            await self._post(f"/api/kernels/{kernel_id}/interrupt", timeout=_INTERRUPT_TIMEOUT_S)

    async def _post(self, path: str, *, timeout: float, body: str = "") -> HTTPResponse:
        """Send a POST request.

        If the caller is cancelled, an error of the request is ignored, which Tornado would log otherwise.
        """
        request = HTTPRequest(
            f"http://{self._authority}{path}",
            method="POST",
            body=body,
            headers=self._headers,
            request_timeout=timeout,
            follow_redirects=False,
        )
        answer = self._http.fetch(request)
        answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # the exception is retrieved
        return await asyncio.shield(answer)
