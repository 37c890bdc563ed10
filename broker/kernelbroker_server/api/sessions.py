"""Sessions over HTTP: open, list, look, extend, interrupt, restart, close."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.messages import SessionInfo, SessionOptions

from ..sessions.session import Session
from .base import ApiHandler, iso_time


class SessionChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What PATCH may change; durations in seconds. Both count from where they did before."""

    idle_timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_lifetime: Annotated[float, msgspec.Meta(gt=0)] | None = None
    metadata: dict[str, Any] | None = None


class Sessions(ApiHandler):
    """GET and POST /sessions."""

    async def get(self) -> None:
        sessions = self.service.registry.list()
        self.reply({"sessions": [info(s, self.service.backend.isolation) for s in sessions]})

    async def post(self) -> None:
        session, is_new = await self.service.registry.open(self.body_as(SessionOptions))
        self.reply(info(session, self.service.backend.isolation), 201 if is_new else 200)


class OneSession(ApiHandler):
    """GET, PATCH and DELETE /sessions/{id}."""

    async def get(self, session_id: str) -> None:
        session = self.service.registry.get(session_id)
        self.reply(info(session, self.service.backend.isolation))

    async def patch(self, session_id: str) -> None:
        session = self.service.registry.get(session_id)
        change = self.body_as(SessionChange)
        limit = session.limits.max_lifetime
        if (change.max_lifetime or 0) > limit or (change.idle_timeout or 0) > limit:
            raise BadRequest(f"a session lives at most {limit:g} s")
        session.idle_timeout = change.idle_timeout or session.idle_timeout
        session.max_lifetime = change.max_lifetime or session.max_lifetime
        if change.metadata is not None:
            session.options.metadata = change.metadata
        self.reply(info(session, self.service.backend.isolation))

    async def delete(self, session_id: str) -> None:
        await self.service.registry.get(session_id).close("its client closed it")
        self.set_status(204)


class Interrupt(ApiHandler):
    """POST /sessions/{id}/interrupt."""

    async def post(self, session_id: str) -> None:
        self.service.registry.get(session_id).interrupt()
        self.reply({"interrupted": True}, 202)


class Restart(ApiHandler):
    """POST /sessions/{id}/restart."""

    async def post(self, session_id: str) -> None:
        session = self.service.registry.get(session_id)
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
