"""A session as a notebook, over HTTP."""

from __future__ import annotations

from ..service.notebooks import Notebook
from .base import ApiHandler
from .openapi import Content, operation

_TYPE = "application/x-ipynb+json"


class SessionNotebook(ApiHandler):
    @operation({200: Content({_TYPE: Notebook})})
    async def get(self, session_id: str) -> None:
        """Get a session as a notebook: its cells with their outputs so far. It may have ended."""
        content = await self.tenant.notebooks.json_of(session_id)
        self.set_header("Content-Type", _TYPE)
        self.set_header("Content-Disposition", f'attachment; filename="{session_id}.ipynb"')
        self.finish(content)
