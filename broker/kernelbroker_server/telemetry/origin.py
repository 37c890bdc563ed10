"""Who asked for something, and through which kind of client: for people who look at it later.

It is a context variable of the request's task, as the ids of log lines are. The kind of client is what the
client says of itself, so no right depends on it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Origin(NamedTuple):
    """The origin of an execution.

    Attributes:
        client: `sdk`, `mcp`, `e2b`, `jupyter`, `console`, `rest`, or another surface; empty if unknown.
        user: the name or the id of the token; empty if unknown.
    """

    client: str = ""
    user: str = ""


_UNKNOWN = Origin()
_ORIGIN: ContextVar[Origin] = ContextVar("origin", default=_UNKNOWN)


def set_origin(client: str, user: str) -> None:
    """Set the origin of what this task asks for, and of tasks that it creates from now on."""
    _ORIGIN.set(Origin(client, user))


def current_origin() -> Origin:
    """Return the origin of what this task asks for."""
    return _ORIGIN.get()
