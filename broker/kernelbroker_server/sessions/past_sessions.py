"""Sessions that have ended and are still stored, as people look for them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple, TypeAlias

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import TooLarge
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from ..telemetry.origin import Origin

Place: TypeAlias = tuple[float, str]
"""In the list of a tenant: the end of a session, and its key."""
_SCANNED = 5_000
"""Sessions that one search looks at. The next one goes on behind them."""


class LastCell(NamedTuple):
    """The latest execution of a session. `success` is None if its end is not known."""

    execution_id: str
    accepted_at: float
    request: ExecutionRequest
    success: bool | None
    origin: Origin


class PastSession(NamedTuple):
    """A session that has ended. Times are in seconds since the epoch.

    Attributes:
        executions: how many of its executions are kept.
        origin: who opened it, through which client.
        last: the latest of its executions that are kept.
    """

    key: str
    session_id: str
    options: SessionOptions
    opened_at: float
    ended_at: float
    reason: str
    origin: Origin
    executions: int
    last: LastCell | None

    @property
    def place(self) -> Place:
        """Its place in the list, which begins with the greatest."""
        return self.ended_at, self.key

    def contains(self, text: str) -> bool:
        """Whether its names, its metadata or its last code contain a text, in any case."""
        last = self.last
        parts = (
            self.session_id,
            self.options.template,
            self.options.context_of or "",
            self.reason,
            *self.origin,
            encode(self.options.metadata).decode("utf-8", "replace"),
            *(() if last is None else (last.request.code, *last.origin)),
        )
        return any(text.lower() in part.lower() for part in parts)


class PastPage(NamedTuple):
    """Sessions, the one that ended last is the first. `rest` is the place to go on from, or None."""

    sessions: list[PastSession]
    rest: Place | None


def page_of(sessions: Iterable[PastSession], text: str, limit: int) -> PastPage:
    """Return the first sessions that contain a text.

    Args:
        sessions: in the order of the list; not all of them are read.
    """
    found: list[PastSession] = []
    place = None
    remaining = iter(sessions)
    for session in islice(remaining, _SCANNED):
        if len(found) == limit:
            return PastPage(found, place)
        place = session.place
        if session.contains(text):
            found.append(session)
    return PastPage(found, None if next(remaining, None) is None else place)


def expect_size(held: int, max_bytes: int) -> None:
    """Raise TooLarge if the executions of a session take more than this."""
    if held > max_bytes:
        raise TooLarge(
            f"the executions of this session take {held:,} bytes, and {max_bytes:,} is the limit; "
            "get them one by one"
        )
