"""The events of a session for a front end: a stream that can be resumed, and events of planners."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.session_events import SessionEventList

from ..sessions.session_log import SessionLog, StoredSessionEvent
from .base import ApiHandler
from .content_negotiation import JSON, NDJSON, SSE, Representation, negotiate
from .disconnect import Disconnectable
from .openapi import Content, operation

KEEPALIVE_S = 15.0
"""The longest silence of a stream: proxies close connections that are silent for longer."""


class ServerSentEvent(msgspec.Struct, kw_only=True):
    """One event of a stream. `data` is the session's event as JSON."""

    event: str
    id: str
    data: str


_ANSWER = Content(
    {
        "text/event-stream": ServerSentEvent,
        "application/x-ndjson": str,
        "application/json": SessionEventList,
    }
)


class SessionEvents(Disconnectable, ApiHandler):
    @operation({200: _ANSWER, 204: None}, query={"after": Annotated[int, msgspec.Meta(ge=0)]})
    async def get(self, session_id: str) -> None:
        """Get the events of a session after a `seq`, then new ones as they come, until the session ends.

        `Accept` selects server-sent events (the default), NDJSON, or a JSON object with what is stored.
        The header `Last-Event-ID` goes before `after`. The status is 204 if the session has ended and
        nothing follows, so that browsers do not connect again.
        """
        log = await self.tenant.events.find(session_id)
        after = min(self._after(), log.last)
        chosen = negotiate(self.request.headers.get("Accept", ""), SSE)
        if chosen is JSON:
            events = [decode_json(each.json) for each in log.read(after)]
            self.reply(SessionEventList(events=events, last=log.last))
            return
        if log.has_ended and after == log.last:
            self.set_status(204)
            return
        chosen = chosen if chosen is NDJSON else SSE
        with log.reading():
            async with self.until_disconnected():
                await self._stream(log, after, chosen)

    @operation({201: dict[str, Any]}, body=dict[str, Any])
    async def post(self, session_id: str) -> None:
        """Post an event of a planner: its `type`, and the fields of this type. Returns it as it is stored.

        The types: `sandbox_created`, `sandbox_ready`, `plan` (`steps`), `step_start` (`step`),
        `code_operation` (`operation`), `observation` (`content`), `test_output`, `result` (`success`).
        """
        stored = await self.tenant.events.post(session_id, self.body_as(dict[str, Any]))
        self.reply(decode_json(stored.json), 201)

    def _after(self) -> int:
        """The `seq` of the last event that the client has. Raises BadRequest."""
        given = self.request.headers.get("Last-Event-ID")
        name = "the header Last-Event-ID"
        if given is None:
            given, name = self.get_query_argument("after", "0"), "after"
        if not (given.isascii() and given.isdigit()):
            raise BadRequest(f"{name} must be the seq of the last event that you have")
        return int(given[:18])

    async def _stream(self, log: SessionLog, after: int, chosen: Representation) -> None:
        self.set_header("Content-Type", chosen.content_type)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")  # otherwise nginx buffers the answer
        await self.flush()
        async with contextlib.aclosing(_with_pauses(log, after)) as events:
            async for stored in events:
                self.write(_written(stored, chosen))
                await self.flush()


def _written(stored: StoredSessionEvent | None, chosen: Representation) -> bytes:
    """An event, or a sign of life."""
    if stored is None:
        return b": keepalive\n\n" if chosen is SSE else b"\n"
    if chosen is SSE:
        return f"event: {stored.type}\nid: {stored.seq}\ndata: ".encode() + stored.json + b"\n\n"
    return stored.json + b"\n"


async def _with_pauses(
    log: SessionLog, after: int
) -> AsyncGenerator[StoredSessionEvent | None, None]:
    """The events, with None whenever nothing has come for a while."""
    async with contextlib.aclosing(log.follow(after)) as events:
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait([coming], timeout=KEEPALIVE_S))[0]:
                    yield None
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait([coming])
            if (stored := coming.result()) is None:
                return
            yield stored
