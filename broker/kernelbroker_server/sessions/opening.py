"""A session that is being opened."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from .session import Session


@dataclass(slots=True, eq=False)
class Opening:
    """A session that is being opened.

    Attributes:
        workspace: the name of its workspace.
        context_of: the session that it is a context of.
        waiting: callers that wait for it.
        received: a caller has received it, so it stays open if another caller is cancelled.
    """

    task: asyncio.Task[Session]
    workspace: str
    context_of: str | None = None
    waiting: int = 0
    received: bool = False
