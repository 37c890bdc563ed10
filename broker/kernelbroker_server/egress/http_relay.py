"""Relays one plain HTTP request and its response.

Both are parsed and serialized again. So the server gets exactly the request that was authorized, and
neither side sees how the other one frames its messages.
"""

from __future__ import annotations

import asyncio

import h11

from .credential_mask import CredentialMask
from .rules import MAX_HEAD_BYTES, Destination, Reason, Refused
from .stream_pair import StreamPair

_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"trailer", b"upgrade"})


class HttpRelay:
    """Relays one request; call `run` once.

    Args:
        client: has parsed the head of the request and nothing behind it.
        destination: the server that the request is for.
        dropped: header fields of the response that the client does not get, in lower case.
        mask: keeps credentials out of the response.

    Attributes:
        answered: whether a part of the response was sent to the client.
    """

    def __init__(
        self,
        streams: StreamPair,
        client: h11.Connection,
        destination: Destination,
        dropped: frozenset[bytes] = frozenset(),
        mask: CredentialMask | None = None,
    ) -> None:
        self.answered = False
        self._streams = streams
        self._asked = destination
        self._client = client
        self._dropped = _HOP_BY_HOP | dropped
        self._mask = mask or CredentialMask(())
        self._server = h11.Connection(h11.CLIENT, max_incomplete_event_size=4 * MAX_HEAD_BYTES)

    async def run(self, head: h11.Request) -> None:
        """Send the request and relay the response to its end.

        Raises:
            Refused, OSError
        """
        await self._to_server(head)
        up = asyncio.create_task(self._relay_body())
        try:
            await self._relay_response()
        except h11.ProtocolError:
            if up.done() and up.exception() is not None:
                text = "the body of the request is truncated or malformed"
                raise Refused(Reason.MALFORMED, text, self._asked, 400) from None
            text = f"{self._asked.host} does not answer with HTTP"
            raise Refused(Reason.BROKEN_ANSWER, text, self._asked, 502) from None
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)  # its errors show in the response

    async def _relay_response(self) -> None:
        """Raises h11.ProtocolError if the response is malformed or truncated."""
        while not isinstance(event := await self._next_server_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                self.answered = True
                await self._to_client(_closing_response(event, self._dropped, self._mask))
            elif isinstance(event, h11.Data):
                await self._send_body(self._mask.piece(bytes(event.data)))
            elif not isinstance(
                event, h11.InformationalResponse
            ):  # 1xx responses are for the proxy
                raise h11.RemoteProtocolError("the connection was closed")
        await self._send_body(self._mask.rest())
        await self._to_client(h11.EndOfMessage())

    async def _send_body(self, data: bytes) -> None:
        if data:
            await self._to_client(h11.Data(data=data))

    async def _next_server_event(self) -> object:
        while (event := self._server.next_event()) is h11.NEED_DATA:
            try:
                self._server.receive_data(await self._streams.read_server())
            except OSError:
                raise h11.RemoteProtocolError("the connection was reset") from None
        return event

    async def _relay_body(self) -> None:
        """Raises h11.ProtocolError if the body is malformed or truncated; the response ends then, too."""
        client = self._client
        try:
            while not isinstance(event := client.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    await self._to_server(event)
                elif event is h11.NEED_DATA:
                    if client.they_are_waiting_for_100_continue and not self.answered:
                        await self._to_client(
                            h11.InformationalResponse(status_code=100, headers=[])
                        )
                    client.receive_data(await self._streams.read_client())
                else:
                    raise h11.RemoteProtocolError("the connection was closed")
            await self._to_server(h11.EndOfMessage())
        except h11.ProtocolError:
            self._streams.abort_server()
            raise
        except OSError:  # the server hung up, perhaps after its response, which is relayed
            pass

    async def _to_server(self, event: h11.Event) -> None:
        await self._streams.write_server(self._server.send(event) or b"")

    async def _to_client(self, event: h11.Event) -> None:
        await self._streams.write_client(self._client.send(event) or b"")


def _closing_response(
    response: h11.Response, dropped: frozenset[bytes], mask: CredentialMask
) -> h11.Response:
    """The response with `Connection: close`, without the fields of these names and without credentials."""
    headers = [
        (name, mask.masked(value)) for name, value in response.headers if name not in dropped
    ]
    return h11.Response(
        status_code=response.status_code,
        reason=response.reason,
        headers=[*headers, (b"Connection", b"close")],
    )
