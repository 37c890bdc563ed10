"""The sessions that have ended, and whose results are still kept."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.errors import BadRequest

from ..sessions.past_sessions import PastSession, Place
from .base import ApiHandler
from .descriptions import LAST_CODE_CHARS, LastExecution, utc_time
from .openapi import operation

_MAX_SESSIONS = 500
_MAX_TEXT = 200
_CURSOR = re.compile(r"(\d{1,12}\.\d{1,12})-([A-Za-z0-9_.-]{1,64})")


class EndedSession(msgspec.Struct, kw_only=True):
    """A session that has ended. Times are in UTC (ISO 8601 in JSON).

    Attributes:
        reason: why it ended.
        context_of: the session that it was a context of, or null.
        executions: how many of its executions are kept.
        client, user: what it was opened through, and the name or the id of the token.
    """

    session_id: str
    template: str
    context_of: str | None
    created_at: datetime
    ended_at: datetime
    reason: str
    metadata: dict[str, Any]
    executions: int
    client: str
    user: str
    last_execution: LastExecution | None


class EndedSessionList(msgspec.Struct, kw_only=True):
    """Sessions, the one that ended last is the first. `next` is `before` of the next page, or null."""

    sessions: list[EndedSession]
    next: str | None = None


class EndedSessions(ApiHandler):
    @operation(
        {200: EndedSessionList},
        query={
            "text": str,
            "before": str,
            "limit": Annotated[int, msgspec.Meta(ge=1, le=_MAX_SESSIONS)],
        },
    )
    async def get(self) -> None:
        """List the sessions that have ended and whose results are kept, the latest first.

        `text` stands in their names, metadata, reason or last code, or is who opened them through what.
        A page may have less than `limit` sessions although `next` says that there are more.
        """
        text = self.get_query_argument("text", "")
        if len(text) > _MAX_TEXT:
            raise BadRequest(f"text has at most {_MAX_TEXT} characters")
        limit = self.get_query_argument("limit", "100")
        if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= _MAX_SESSIONS):
            raise BadRequest(f"limit must be a whole number from 1 to {_MAX_SESSIONS}")
        before = self.get_query_argument("before", None)
        page = await self.tenant.sessions.past(text, int(limit), _place(before))
        rest = None if page.rest is None else f"{page.rest[0]:.9f}-{page.rest[1]}"
        self.reply(EndedSessionList(sessions=[_info(each) for each in page.sessions], next=rest))


def _place(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    if (found := _CURSOR.fullmatch(cursor)) is None:
        raise BadRequest("before must be the `next` of an earlier answer")
    return float(found[1]), found[2]


def _info(session: PastSession) -> EndedSession:
    last = session.last
    return EndedSession(
        session_id=session.session_id,
        template=session.options.template,
        context_of=session.options.context_of,
        created_at=utc_time(session.opened_at),
        ended_at=utc_time(session.ended_at),
        reason=session.reason,
        metadata=session.options.metadata,
        executions=session.executions,
        client=session.origin.client,
        user=session.origin.user,
        last_execution=None
        if last is None
        else LastExecution(
            execution_id=last.execution_id,
            state="done",
            accepted_at=utc_time(last.accepted_at),
            success=last.success,
            code=last.request.code[:LAST_CODE_CHARS],
            language=last.request.language or "python",
            client=last.origin.client,
            user=last.origin.user,
        ),
    )
