"""The options of contexts, and of sessions as far as contexts have them too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
from kernelbroker.protocol.errors import BadRequest, TooManyRequests
from kernelbroker.protocol.findings import Language
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from .routes import AUTO
from .session import Session

_ALIASES = {"bash": "shell", "sh": "shell", "js": "javascript"}
_OWN = ("session_id", "metadata", "cwd", "language", "on_error", "context_of")
"""The options that a context may have. It has the others of its session."""
_DEFAULTS = SessionOptions()


def language_of(name: str) -> Language:
    """Return the language with this name. Raises BadRequest if code in it does not run here."""
    language = _ALIASES.get(name.lower(), name.lower())
    if language not in get_args(Language):
        raise BadRequest(
            f"there is no language {name!r}; there are: python, javascript (js) and shell (bash)"
        )
    return language  # type: ignore[return-value]


def context_options(session: Session, asked: SessionOptions) -> SessionOptions:
    """Return the options of a context: its own, and the others of its session.

    Raises:
        BadRequest: it must not have one of them, or the session is a context itself.
        SessionGone
    """
    session.expect_open()
    if session.session is not None:
        raise BadRequest(
            f"{session.id} is a context itself; open another one with context_of="
            f"{session.session.id!r}"
        )
    if session.options.template == AUTO:
        raise BadRequest(
            'a session with template = "auto" moves from one sandbox to another, so it has no contexts; '
            "open one with another template"
        )
    for name in asked.__struct_fields__:
        value = getattr(asked, name)
        if name in _OWN or value in (getattr(_DEFAULTS, name), getattr(session.options, name)):
            continue
        raise BadRequest(
            f"a context has the {name} of its session: leave it out, or open a session of its own"
        )
    given = {name: getattr(asked, name) for name in _OWN}
    given["on_error"] = asked.on_error or session.options.on_error
    given["cwd"] = asked.cwd or session.options.cwd
    own = msgspec.structs.replace(session.options, **given)
    return msgspec.structs.replace(own, from_checkpoint=None, workspace=None)


def resolved(session: Session, request: ExecutionRequest) -> ExecutionRequest:
    """Return a request with the session's defaults in the place of what it leaves out."""
    if request.language is not None and request.on_error is not None:
        return request
    options = session.options
    return msgspec.structs.replace(
        request,
        language=request.language or language_of(options.language),
        on_error=request.on_error or options.on_error or "rollback",
    )


def expect_room(
    session: Session | None, opening: int, sessions: Sequence[Session], limit: int | None
) -> None:
    """Check that one more session, or a context of `session`, may be opened. Raises TooManyRequests.

    Args:
        opening: those of the same kind that are being opened.
        sessions: those of the tenant that are open.
        limit: how many the tenant may have, without contexts.
    """
    if session is not None:
        if len(session.contexts) + opening >= (most := session.limits.contexts):
            raise TooManyRequests(
                f"session {session.id} has {most} contexts, the most that it may have; close one",
                retry_after=5,
            )
    elif limit is not None and sum(each.session is None for each in sessions) + opening >= limit:
        raise too_many(limit)


def too_many(limit: int) -> TooManyRequests:
    """The error for a tenant that has as many sessions as it may have."""
    return TooManyRequests(
        f"{limit} sessions are open, the most that you may have; close one", retry_after=5
    )
