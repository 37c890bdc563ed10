"""Where a cell runs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from kernelbroker.protocol.errors import NotFound, SessionGone
from kernelbroker.protocol.messages import SessionOptions

from ..sessions.registry import Registry
from ..sessions.routes import AUTO


@dataclass(frozen=True, slots=True)
class Target:
    """The place where a cell runs.

    Attributes:
        session_id: the session, opened if necessary. None for a separate sandbox for this cell.
        must_exist: the session must be open already.
        template, workspace: the options of a new session; None for the defaults.
    """

    session_id: str | None = None
    must_exist: bool = False
    template: str | None = None
    workspace: str | None = None


def session_options(target: Target, registry: Registry) -> SessionOptions:
    """Return the options of the session that a target asks for."""
    options = SessionOptions(session_id=target.session_id, workspace=target.workspace)
    if target.session_id is None and target.workspace is None:
        options.workspace_retention = 0
    if target.template is not None:
        options.template = target.template
    if target.session_id is not None:
        with contextlib.suppress(NotFound, SessionGone):
            template = registry.get(target.session_id).options.template
            if target.template is None or template == AUTO:  # then each cell can name its own
                options.template = template
    return options
