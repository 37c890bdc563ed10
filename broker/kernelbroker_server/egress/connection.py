"""Serves one connection from a sandbox: one request, which is authorized and relayed to its server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import h11

from .addresses import Network
from .client_hello import ALERT_UNRECOGNIZED_NAME, InvalidClientHello, server_name
from .credential_mask import CredentialMask
from .host_names import AllowList, InvalidHostName, normalize_host
from .http_relay import HttpRelay
from .reverse_proxy import DROPPED_ANSWERS, ForwardedRequest, Upstreams
from .rules import (
    MAX_HEAD_BYTES,
    AllowedRequest,
    Destination,
    Reason,
    Refused,
    authorize,
    check_head,
)
from .stream_pair import StreamPair
from .upstream import Resolve, checked_addresses, connect

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_FINISH_TIMEOUT_S = 1.0
"""Seconds that a client may take to close its connection after the last byte."""


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What one sandbox may use. Durations are in seconds.

    Attributes:
        connections: open at the same time.
        burst: connections that are accepted without a pause.
        rate: further connections that are accepted each second.
    """

    connections: int = 32
    burst: int = 100
    rate: float = 20.0
    head_timeout: float = 15.0
    resolve_timeout: float = 10.0
    connect_timeout: float = 15.0
    idle_timeout: float = 120.0
    total_timeout: float = 3600.0


@dataclass(frozen=True, slots=True)
class ProxyPolicy:
    """The rules for all connections of one sandbox."""

    template: str
    allow: AllowList
    private: Sequence[Network]
    resolve: Resolve
    limits: ProxyLimits
    upstreams: Upstreams = field(default_factory=Upstreams)


class ProxyConnection:
    """One connection; call `run` once.

    Attributes, for the audit log:
        destination: the destination of the request, as far as it could be parsed.
        address: the address that the proxy connected to.
        refused: why the request was refused; None if it was not.
        streams: the streams to both sides, with byte counts.
        upstream: the id of the server behind an address of ours; None for other requests.
    """

    def __init__(
        self, policy: ProxyPolicy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.destination = Destination()
        self.address: str | None = None
        self.refused: Refused | None = None
        self.upstream: str | None = None
        self.streams = StreamPair(reader, writer, policy.limits.idle_timeout)
        self._policy = policy
        self._reader = reader
        self._is_tunnel = False
        self._relay: HttpRelay | None = None

    async def run(self) -> None:
        """Serve the connection to its end, and close it."""
        try:
            async with asyncio.timeout(self._policy.limits.total_timeout):
                try:
                    await self._serve()
                except Refused as refused:
                    self.refused = refused
                    await self.streams.write_client(self._error_response(refused))
                await self.streams.finish_client(_FINISH_TIMEOUT_S)
        except (OSError, TimeoutError):  # a side hung up, or was silent for too long
            pass
        finally:
            self.streams.close()

    async def _serve(self) -> None:
        limits, policy = self._policy.limits, self._policy
        client = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        target = await self._target(client)
        destination = self.destination = target.destination
        if isinstance(target, ForwardedRequest):
            await self._forward(client, target)
            return
        addresses = await checked_addresses(
            destination, policy.resolve, policy.private, limits.resolve_timeout
        )
        address, reader, writer = await connect(destination, addresses, limits.connect_timeout)
        self.address = str(address)
        self.streams.connect_server(reader, writer)
        if target.head is None:
            with suppress(TimeoutError):  # an idle tunnel is closed without an error
                async with self.streams.until_idle():
                    await self._tunnel()
            return
        await self._relayed(HttpRelay(self.streams, client, destination), target.head)

    async def _forward(self, client: h11.Connection, target: ForwardedRequest) -> None:
        """Relay a request for an address of ours to the server behind it."""
        upstream, destination = target.upstream, target.destination
        self.upstream = upstream.id
        connect_timeout = self._policy.limits.connect_timeout
        self.address, reader, writer = await upstream.connect(destination, connect_timeout)
        self.streams.connect_server(reader, writer)
        mask = CredentialMask(upstream.secrets)
        relay = HttpRelay(self.streams, client, destination, DROPPED_ANSWERS, mask)
        await self._relayed(relay, target.head, upstream.idle_timeout)

    async def _relayed(
        self, relay: HttpRelay, head: h11.Request, idle_timeout: float | None = None
    ) -> None:
        self._relay = relay
        try:
            async with self.streams.until_idle(idle_timeout):
                await relay.run(head)
        except TimeoutError:
            text = f"{self.destination.host} does not answer"
            raise Refused(Reason.TIMEOUT, text, self.destination, 504) from None

    async def _target(self, client: h11.Connection) -> AllowedRequest | ForwardedRequest:
        try:
            async with asyncio.timeout(self._policy.limits.head_timeout):
                head = await self._reader.readuntil(b"\r\n\r\n")
            check_head(head)
            client.receive_data(head)
            request = client.next_event()
            if not isinstance(request, h11.Request):
                raise h11.RemoteProtocolError("incomplete")
        except TimeoutError:
            raise Refused(
                Reason.TIMEOUT, "no request arrived in time", Destination(), 408
            ) from None
        except asyncio.LimitOverrunError:
            text = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
            raise Refused(Reason.MALFORMED, text, Destination(), 431) from None
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise ConnectionError from None
            raise Refused(
                Reason.MALFORMED, "the request is truncated", Destination(), 400
            ) from None
        except h11.RemoteProtocolError:
            raise Refused(
                Reason.MALFORMED, "this is not an HTTP request", Destination(), 400
            ) from None
        forwarded = self._policy.upstreams.authorize(request)
        return forwarded or authorize(request, self._policy.allow, self._policy.template)

    async def _tunnel(self) -> None:
        streams = self.streams
        await streams.write_client(_ESTABLISHED)
        self._is_tunnel = True
        await streams.write_server(await self._client_hello())
        copies = [
            asyncio.create_task(_copy(streams.read_client, streams.write_server)),
            asyncio.create_task(_copy(streams.read_server, streams.write_client)),
        ]
        try:  # TLS clients do not close one direction and still expect data
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)

    async def _client_hello(self) -> bytes:
        """Read the ClientHello, and check that it names the host of the tunnel.

        Returns:
            all bytes read so far.

        Raises:
            Refused
        """
        data = b""
        try:
            while (name := server_name(data)) is None:
                if not (more := await self.streams.read_client()):
                    raise InvalidClientHello("the connection does not start with a TLS handshake")
                data += more
            if normalize_host(name) != self.destination.host:
                raise InvalidClientHello("the TLS hello (SNI) is for another host")
        except (InvalidClientHello, InvalidHostName) as error:
            text = f"{error}, in a tunnel to {self.destination.host}"
            raise Refused(Reason.NOT_TLS_FOR_HOST, text, self.destination) from None
        return data

    def _error_response(self, refused: Refused) -> bytes:
        """The error as bytes for the client; empty if a part of the response was sent already."""
        if self._is_tunnel:
            return ALERT_UNRECOGNIZED_NAME
        if self._relay is not None and self._relay.answered:
            return b""
        # The text is the reason phrase as well: clients show nothing else of a refused CONNECT.
        text = f"kernelbroker: {refused.text}".encode("ascii", "replace")
        lines = [
            b"HTTP/1.1 %d %s" % (refused.status, text),
            b"Content-Type: text/plain",
            b"Content-Length: %d" % (len(text) + 1),
            b"Connection: close",
        ]
        return b"\r\n".join([*lines, b"", text + b"\n"])


async def _copy(
    read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]
) -> None:
    with suppress(OSError):
        while data := await read():
            await write(data)
