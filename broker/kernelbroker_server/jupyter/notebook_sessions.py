"""Jupyter sessions over HTTP: which notebook or console uses which kernel.

They are notes in the metadata of the session that is the kernel, and end with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec
from kernelbroker.protocol.errors import NotFound
from kernelbroker.protocol.messages import SessionOptions

from ..api.disconnect import Disconnectable
from ..service.sessions import SessionChange
from ..sessions.session import Session
from . import models
from .handler import JupyterApiHandler
from .models import METADATA_KEY, NotebookSession


class KernelChoice(msgspec.Struct):
    """A kernel that runs, or the kernelspec of a new one."""

    id: str | None = None
    name: str | None = None


class Notebook(msgspec.Struct):
    """Where older clients have path and name."""

    path: str | None = None
    name: str | None = None


class NewSession(msgspec.Struct):
    """The body of a request for a session, or to change one."""

    path: str | None = None
    name: str | None = None
    type: str | None = None
    kernel: KernelChoice | None = None
    notebook: Notebook | None = None

    def __post_init__(self) -> None:
        if self.notebook is not None:
            self.path = self.path or self.notebook.path
            self.name = self.name or self.notebook.name


class SessionsHandler(JupyterApiHandler):
    """The base: finds and stores."""

    async def find(self, name: str) -> tuple[NotebookSession, Session]:
        """Return a Jupyter session, and the session that is its kernel. Raises NotFound."""
        for session in self.tenant.sessions.list():
            for found in models.notebook_sessions(session):
                if found.id == name:
                    return found, session
        raise NotFound(f"Session not found: session_id={name!r}")

    async def choose(self, kernel: KernelChoice | None, path: Sequence[NotebookSession]) -> Session:
        """Return the session that is this kernel, or a new one. Raises as `Sessions.open`, NotFound."""
        named = models.attachable(self.tenant.sessions.list())
        session = None if kernel is None else named.get(kernel.name or "")
        if kernel is not None and kernel.id is not None:
            session = await self.tenant.kernels.find(kernel.id)
        if session is not None:
            await self.store(session, [*models.notebook_sessions(session), *path])
            return session
        options = SessionOptions(
            session_id=str(uuid.uuid4()),
            template=models.template_of(kernel.name if kernel else None, self.tenant.pools),
            metadata={METADATA_KEY: msgspec.to_builtins(path)},
        )
        session, _ = await self.tenant.sessions.open(options)
        return session

    async def store(self, session: Session, found: Sequence[NotebookSession]) -> None:
        """Note which Jupyter sessions use a session. Raises BadRequest."""
        metadata = {**session.options.metadata, METADATA_KEY: msgspec.to_builtins(found)}
        if not found:
            del metadata[METADATA_KEY]
        await self.tenant.sessions.change(session.id, SessionChange(metadata=metadata))

    def answer(self, found: NotebookSession, session: Session, status: int = 200) -> None:
        self.reply(models.notebook_session(found, session, self.links), status)


class NotebookSessions(Disconnectable, SessionsHandler):
    async def get(self, **_path: str) -> None:
        listed = [
            models.notebook_session(found, session, self.links)
            for session in self.tenant.sessions.list()
            for found in models.notebook_sessions(session)
        ]
        self.reply(listed)

    async def post(self, **_path: str) -> None:
        """Note that a notebook uses a kernel, which is started if necessary."""
        asked = self.body_as(NewSession)
        path = asked.path or ""
        for session in self.tenant.sessions.list():
            for found in models.notebook_sessions(session):
                if path and found.path == path:
                    self.answer(found, session, 201)
                    return
        found = NotebookSession(
            id=str(uuid.uuid4()), path=path, name=asked.name or "", type=asked.type or "notebook"
        )
        async with self.until_disconnected():
            session = await self.choose(asked.kernel, [found])
            self.set_header("Location", f"/jupyter/api/sessions/{found.id}")
            self.answer(found, session, 201)


class OneNotebookSession(SessionsHandler):
    async def get(self, session_id: str, **_path: str) -> None:
        self.answer(*await self.find(session_id))

    async def patch(self, session_id: str, **_path: str) -> None:
        """Change path, name or type, or use another kernel."""
        found, session = await self.find(session_id)
        asked = self.body_as(NewSession)
        for field in ("path", "name", "type"):
            if (value := getattr(asked, field)) is not None:
                setattr(found, field, value)
        others = [each for each in models.notebook_sessions(session) if each.id != found.id]
        if asked.kernel is None:
            await self.store(session, [*others, found])
        else:
            chosen = await self.choose(asked.kernel, [])
            await self.store(session, others)
            await self.store(chosen, [*models.notebook_sessions(chosen), found])
            if chosen is not session and not others:
                await self.tenant.kernels.leave(session)
            session = chosen
        self.answer(found, session)

    async def delete(self, session_id: str, **_path: str) -> None:
        """Forget it, and shut down its kernel, unless another notebook uses that or has not started it."""
        found, session = await self.find(session_id)
        others = [each for each in models.notebook_sessions(session) if each.id != found.id]
        await self.store(session, others)
        if not others:
            await self.tenant.kernels.leave(session)
        self.set_status(204)
