"""Follows a session: the events of all its executions, from any client."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from .discovery import Address
from .protocol.codec import decode_incoming, encode
from .protocol.errors import ConnectionFailed, ConnectionLost
from .protocol.events import Event, Result
from .protocol.messages import Closed, Open, Resume, SessionInfo
from .session_requests import SessionRequests
from .websocket import Timeouts, connect_session, disconnect, reconnect_session

_REMEMBERED = 1_000
"""Ended executions whose events are known as such if they come again."""
_MAX_LOSSES = 10
"""It fails after so many connections in a row that brought no event."""


async def follow(
    address: Address, info: SessionInfo, timeouts: Timeouts, requests: SessionRequests
) -> AsyncGenerator[Event, None]:
    """Yield the events of the session `info` until it ends. See `Broker.follow`."""
    request = Open(session_id=info.session_id, template=info.template)
    # What ends after this is followed, also if it has ended when the connection is there.
    ended_before = {
        each.execution_id for each in await requests.executions() if each.state == "done"
    }
    follower = _Follower(requests, ended_before)
    websocket, _ = await connect_session(address, request, timeouts, None, info)
    ended, losses = False, 0
    try:
        while not ended:
            try:
                await follower.resume(websocket)
                while not ended:
                    message = decode_incoming(await websocket.recv(decode=False))
                    ended = isinstance(message, Closed)
                    if isinstance(message, Event) and follower.is_next(message):
                        losses = 0
                        yield message
            except (ConnectionClosed, ConnectionFailed, ConnectionLost) as exc:
                losses += 1
                if losses > _MAX_LOSSES:
                    raise ConnectionLost(f"{address.url} ends each connection at once") from exc
                await disconnect(websocket, None)
                websocket, _ = await reconnect_session(address, request, timeouts, info)
    finally:
        await disconnect(websocket, None)


class _Follower:
    """What was seen of each execution. An event can come twice: `resume` overlaps with what comes.

    Args:
        ended_before: executions that are not followed.
    """

    def __init__(self, requests: SessionRequests, ended_before: set[str]) -> None:
        self._requests = requests
        self._seen: OrderedDict[str, int] = OrderedDict()
        """The last `seq` of each execution."""
        self._running: set[str] = set()
        self._ended_before = ended_before

    async def resume(self, websocket: ClientConnection) -> None:
        """Ask for what a new connection does not send: events of executions that were accepted before."""
        for each in await self._requests.executions():
            name = each.execution_id
            if name not in self._ended_before and (name not in self._seen or name in self._running):
                resume = Resume(execution_id=name, after=self._seen.get(name, 0))
                await websocket.send(encode(resume), text=True)

    def is_next(self, event: Event) -> bool:
        """Whether this is the next event of its execution, and not one that was seen."""
        name = event.execution_id
        if event.seq != self._seen.get(name, 0) + 1:
            return False
        self._seen[name] = event.seq
        if isinstance(event, Result):
            self._running.discard(name)
        else:
            self._running.add(name)
        while len(self._seen) > _REMEMBERED + len(self._running):
            oldest = next(each for each in self._seen if each not in self._running)
            del self._seen[oldest]
        return True
