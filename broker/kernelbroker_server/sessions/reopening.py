"""Whether an open session is the one that a client asks for."""

from __future__ import annotations

from kernelbroker.protocol.errors import Conflict
from kernelbroker.protocol.messages import SandboxLimits, SessionOptions

from .session import Session


def same_session(session: Session, options: SessionOptions) -> Session:
    """Return the session if these options could have opened it. Raises Conflict."""
    given, other = session.options, "choose another session_id"
    if options.context_of not in (None, given.context_of):
        raise Conflict(f"session {session.id} is no context of {options.context_of}; {other}")
    if given.template != options.template:
        raise Conflict(f"session {session.id} has the template {given.template!r}; {other}")
    if options.workspace not in (None, session.workspace):
        raise Conflict(f"session {session.id} has the workspace {session.workspace!r}; {other}")
    if options.from_checkpoint not in (None, session.options.from_checkpoint):
        raise Conflict(
            f"session {session.id} did not begin with checkpoint {options.from_checkpoint!r}; "
            "choose another session_id"
        )
    if options.limits not in (SandboxLimits(), given.limits):
        raise Conflict(
            f"session {session.id} has other limits; change them with PATCH, or choose another session_id"
        )
    if options.project not in (None, given.project):
        raise Conflict(f"session {session.id} has another project; {other}")
    for name in ("cwd", "env", "secrets"):
        asked = getattr(options, name)
        if asked and asked != getattr(session.options, name):
            raise Conflict(
                f"session {session.id} was opened with another {name}, which stays; leave it out, "
                "give it to each cell, or choose another session_id"
            )
    return session
