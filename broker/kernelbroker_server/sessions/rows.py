"""The objects that rows of the durable store's database stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.events import Event, Result
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from ..telemetry.origin import Origin
from .past_sessions import LastCell, PastSession
from .queries import Row
from .store import SessionRecord


def event_of(json: bytes) -> Event:
    """Return a stored event."""
    union: Any = Event  # mypy takes only classes for types
    event: Event = decode_as(json, union)
    return event


def record_of(
    key: str,
    tenant: str,
    session_id: str,
    options: bytes,
    opened_at: float,
    client: str,
    user: str,
) -> SessionRecord:
    """Return the record of a session, from a row of `Queries.open_sessions`."""
    asked = decode_as(options, SessionOptions)
    return SessionRecord(key, tenant, session_id, asked, opened_at, Origin(client, user))


def past_session_of(row: Row, last_event: Callable[[int], list[bytes]]) -> PastSession:
    """Return a session that has ended, from a row of `Queries.past_sessions`.

    Args:
        last_event: returns the last event of an execution, by its number.
    """
    key, session_id, options, opened_at, ended_at, reason, client, user, count, *cell = row
    last = None
    if cell[0] is not None:
        number, execution_id, request, accepted_at, *origin = cell
        ends = [event_of(json) for json in last_event(number)]
        success = ends[0].success if ends and isinstance(ends[0], Result) else None
        asked = decode_as(request, ExecutionRequest)
        last = LastCell(execution_id, accepted_at, asked, success, Origin(*origin))
    return PastSession(
        key,
        session_id,
        decode_as(options, SessionOptions),
        opened_at,
        ended_at,
        reason or "",
        Origin(client, user),
        count,
        last,
    )
