"""Sessions over HTTP: open, list, get, change, interrupt, restart, close."""

from __future__ import annotations

import msgspec
from kernelbroker.protocol.messages import SessionInfo, SessionList, SessionOptions
from msgspec import convert

from ..service.sessions import SessionChange
from .base import ApiHandler
from .descriptions import session_info
from .disconnect import Disconnectable
from .openapi import operation
from .other_brokers import items_elsewhere


class Interrupted(msgspec.Struct, kw_only=True):
    interrupted: bool = True


class Sessions(Disconnectable, ApiHandler):
    @operation({200: SessionList})
    async def get(self) -> None:
        """List the open sessions."""
        own = [session_info(session) for session in self.tenant.sessions.list()]
        others = await items_elsewhere(self.service.cluster, self.request, "sessions")
        found = [*own, *(convert(each, SessionInfo) for each in others)]
        self.reply(SessionList(sessions=sorted(found, key=lambda each: each.created_at)))

    @operation({201: SessionInfo, 200: SessionInfo}, body=SessionOptions)
    async def post(self) -> None:
        """Open a session. The status is 200 if a session with this id is open already."""
        options, key = self.body_as(SessionOptions), self.idempotency_key()
        async with self.until_disconnected():  # no client would know the session
            session, is_new = await self.tenant.sessions.open(options, key)
            self.reply(session_info(session), 201 if is_new else 200)


class OneSession(ApiHandler):
    @operation({200: SessionInfo})
    async def get(self, session_id: str) -> None:
        """Get a session."""
        session = await self.tenant.sessions.resolve(session_id)
        self.reply(session_info(session))

    @operation({200: SessionInfo}, body=SessionChange)
    async def patch(self, session_id: str) -> None:
        """Change a session's durations or metadata."""
        session = await self.tenant.sessions.change(session_id, self.body_as(SessionChange))
        self.reply(session_info(session))

    @operation({204: None})
    async def delete(self, session_id: str) -> None:
        """Close a session."""
        await self.tenant.sessions.close(session_id)
        self.set_status(204)


class Interrupt(ApiHandler):
    @operation({202: Interrupted})
    async def post(self, session_id: str) -> None:
        """Raise KeyboardInterrupt in the running cell. Waiting cells stay queued."""
        await self.tenant.sessions.interrupt(session_id)
        self.reply(Interrupted(), 202)


class Restart(ApiHandler):
    @operation({200: SessionInfo})
    async def post(self, session_id: str) -> None:
        """Replace the session's kernel. Variables are lost; files are kept."""
        session = await self.tenant.sessions.restart(session_id)
        self.reply(session_info(session))
