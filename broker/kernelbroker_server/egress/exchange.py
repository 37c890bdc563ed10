"""A plain request and its answer, both read and written anew.

So the server gets what was judged and nothing behind it, and neither side sees how the other frames.
"""

from __future__ import annotations

import asyncio

import h11

from .pipe import Pipe
from .rules import MAX_HEAD_BYTES, Asked, Reason, Refused

_HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"trailer", b"upgrade"}


class Exchange:
    """`run` it once.

    Args:
        client: has read the head of the request, and nothing else yet.
        asked: what the request is for.

    Attributes:
        answered: the client has begun to get an answer.
    """

    def __init__(self, pipe: Pipe, client: h11.Connection, asked: Asked) -> None:
        self.answered = False
        self._pipe = pipe
        self._asked = asked
        self._client = client
        self._server = h11.Connection(h11.CLIENT, max_incomplete_event_size=4 * MAX_HEAD_BYTES)

    async def run(self, head: h11.Request) -> None:
        """Send the request, and pass on the answer to its end. Raises Refused, OSError."""
        await self._to_server(head)
        up = asyncio.create_task(self._pass_body())
        try:
            await self._pass_answer()
        except h11.ProtocolError:
            if up.done() and up.exception() is not None:
                text = "the body of the request is cut or malformed"
                raise Refused(Reason.MALFORMED, text, self._asked, 400) from None
            text = f"{self._asked.host} does not answer in HTTP"
            raise Refused(Reason.BROKEN_ANSWER, text, self._asked, 502) from None
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)  # what it met shows in the answer

    async def _pass_answer(self) -> None:
        """Raises h11.ProtocolError where it is none, or is cut."""
        while not isinstance(event := await self._next_of_server(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                self.answered = True
                await self._to_client(_as_last(event))
            elif isinstance(event, h11.Data):
                await self._to_client(event)
            elif not isinstance(event, h11.InformationalResponse):  # those are for us
                raise h11.RemoteProtocolError("the connection was closed")
        await self._to_client(h11.EndOfMessage())

    async def _next_of_server(self) -> object:
        while (event := self._server.next_event()) is h11.NEED_DATA:
            try:
                self._server.receive_data(await self._pipe.from_server())
            except OSError:
                raise h11.RemoteProtocolError("the connection was reset") from None
        return event

    async def _pass_body(self) -> None:
        """Raises h11.ProtocolError where it is none, or is cut; the answer ends then, too."""
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
                    client.receive_data(await self._pipe.from_client())
                else:
                    raise h11.RemoteProtocolError("the connection was closed")
            await self._to_server(h11.EndOfMessage())
        except h11.ProtocolError:
            self._pipe.drop_server()
            raise
        except OSError:  # it hung up, perhaps behind its answer, which tells
            pass

    async def _to_server(self, event: h11.Event) -> None:
        await self._pipe.to_server(self._server.send(event) or b"")

    async def _to_client(self, event: h11.Event) -> None:
        await self._pipe.to_client(self._client.send(event) or b"")


def _as_last(response: h11.Response) -> h11.Response:
    """With it the connection ends, whatever the server says."""
    headers = [(name, value) for name, value in response.headers if name not in _HOP_BY_HOP]
    return h11.Response(
        status_code=response.status_code,
        reason=response.reason,
        headers=[*headers, (b"Connection", b"close")],
    )
