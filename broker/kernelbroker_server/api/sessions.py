"""Sessions over HTTP: open, list, look, extend, interrupt, restart, close."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.messages import SessionInfo, SessionList, SessionOptions

from ..sessions.session import Session
from .base import ApiHandler, iso_time
from .contract import operation
from .disconnect import Disconnectable


class SessionChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What PATCH may change; durations in seconds. Both count from where they did before."""

    idle_timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_lifetime: Annotated[float, msgspec.Meta(gt=0)] | None = None
    metadata: dict[str, Any] | None = None


class Interrupted(msgspec.Struct, kw_only=True):
    interrupted: bool = True


class Sessions(Disconnectable, ApiHandler):
    @operation({200: SessionList})
    async def get(self) -> None:
        """List the sessions that are open."""
        sessions = self.registry.list()
        isolation = self.service.backend.isolation
        self.reply(SessionList(sessions=[info(session, isolation) for session in sessions]))

    @operation({201: SessionInfo, 200: SessionInfo}, body=SessionOptions)
    async def post(self) -> None:
        """Open a session; 200 where one of that id was open already."""
        options, key = self.body_as(SessionOptions), self.idempotency_key()
        async with self.until_disconnected():  # nobody would know of the session
            session, is_new = await self._open(options, key)
            self.reply(info(session, self.service.backend.isolation), 201 if is_new else 200)

    async def _open(self, options: SessionOptions, key: str | None) -> tuple[Session, bool]:
        if key is None:
            return await self.registry.open(options)

        async def open_it() -> str:
            return (await self.registry.open(options))[0].id

        opened, repeated = await self.registry.opened.once(key, self.fingerprint(), open_it)
        return self.registry.get(opened), not repeated


class OneSession(ApiHandler):
    @operation({200: SessionInfo})
    async def get(self, session_id: str) -> None:
        """Look at a session."""
        session = self.registry.get(session_id)
        self.reply(info(session, self.service.backend.isolation))

    @operation({200: SessionInfo}, body=SessionChange)
    async def patch(self, session_id: str) -> None:
        """Change a session's durations or metadata."""
        session = self.registry.get(session_id)
        change = self.body_as(SessionChange)
        limit = session.limits.max_lifetime
        if (change.max_lifetime or 0) > limit or (change.idle_timeout or 0) > limit:
            raise BadRequest(f"a session lives at most {limit:g} s")
        session.limits.check_metadata(change.metadata or {})
        session.idle_timeout = change.idle_timeout or session.idle_timeout
        session.max_lifetime = change.max_lifetime or session.max_lifetime
        if change.metadata is not None:
            session.options.metadata = change.metadata
        self.reply(info(session, self.service.backend.isolation))

    @operation({204: None})
    async def delete(self, session_id: str) -> None:
        """Close a session."""
        await self.registry.get(session_id).close("its client closed it")
        self.set_status(204)


class Interrupt(ApiHandler):
    @operation({202: Interrupted})
    async def post(self, session_id: str) -> None:
        """Raise KeyboardInterrupt in the running cell; waiting ones stay in line."""
        self.registry.get(session_id).interrupt()
        self.reply(Interrupted(), 202)


class Restart(ApiHandler):
    @operation({200: SessionInfo})
    async def post(self, session_id: str) -> None:
        """Give the session a fresh kernel; its files stay."""
        session = self.registry.get(session_id)
        await session.restart()
        self.reply(info(session, self.service.backend.isolation))


def info(session: Session, isolation: str) -> SessionInfo:
    return SessionInfo(
        session_id=session.id,
        state=session.state.value,
        template=session.options.template,
        workspace=session.workspace,
        isolation=isolation,
        created_at=iso_time(session.created_at),
        last_active_at=iso_time(session.active_at),
        idle_timeout=session.idle_timeout,
        max_lifetime=session.max_lifetime,
        executions=len(session.executions),
        queued=session.queued,
        restarts=session.restarts,
        metadata=session.options.metadata,
    )
