"""Use cases of a session's events for a front end: post one, and read them, also of an ended session."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from kernelbroker.protocol.errors import BadRequest, NotFound, SessionGone, TooManyRequests
from kernelbroker.protocol.session_events import SessionEvent
from kernelbroker.protocol.wrong_fields import words_of

from ..kernels.redaction import Redactor
from ..sessions.registry import Registry
from ..sessions.session import Session
from ..sessions.session_log import SessionLog, StoredSessionEvent
from ..sessions.store import EventStore
from ..telemetry.origin import current_origin
from ..tenants.rate_limiter import RateLimiter

POSTS_PER_MINUTE = 600
"""Events that the planners of one session may post."""
_SET_BY_THE_BROKER = ("seq", "at", "source")
_union: Any = SessionEvent  # mypy takes only classes for types


class SessionEvents:
    """The events of the sessions of one tenant."""

    def __init__(self, registry: Registry, store: EventStore) -> None:
        self._registry = registry
        self._store = store
        self._rates: WeakKeyDictionary[Session, RateLimiter] = WeakKeyDictionary()

    async def find(self, session_id: str) -> SessionLog:
        """Return the events of an open session, or of the one with this id that ended last.

        Raises:
            NotFound, SessionGone, Unavailable
        """
        try:
            return self._registry.get(session_id).events
        except (NotFound, SessionGone):
            log = await self._store.past_session_log(self._registry.tenant.name, session_id)
            if log is None:
                raise
            return log

    async def post(self, session_id: str, fields: dict[str, Any]) -> StoredSessionEvent:
        """Store an event of a planner, which the session's readers get.

        Raises:
            BadRequest: its type is unknown, or a field is missing, unknown, invalid or too large.
            TooManyRequests: the session's planners have posted too many.
            NotFound, SessionGone: as `Sessions.resolve`.
        """
        session = await self._registry.resolve(session_id)
        session.expect_open()
        rate = self._rates.setdefault(session, RateLimiter(POSTS_PER_MINUTE))
        if delay := rate.delay():
            message = f"at most {POSTS_PER_MINUTE} events of a session may be posted in a minute"
            raise TooManyRequests(message, retry_after=delay)
        rate.take()
        return session.events.append(emitted(session, event_of(fields)), current_origin().client)


def event_of(fields: dict[str, Any]) -> SessionEvent:
    """Return the event that a client describes. Raises BadRequest."""
    for name in _SET_BY_THE_BROKER:
        if name in fields:
            raise BadRequest(f"the broker sets {name} of an event: leave it out")
    try:
        event: SessionEvent = msgspec.convert(fields, _union)
    except msgspec.ValidationError as exc:
        raise BadRequest(f"the event is invalid: {words_of(exc, _union)}") from exc
    return event


def emitted(session: Session, event: SessionEvent) -> SessionEvent:
    """Return an event without the values of the session's secrets."""
    secrets = session.secrets
    cleaned: SessionEvent = Redactor(secrets).clean(event) if secrets else event
    return cleaned
