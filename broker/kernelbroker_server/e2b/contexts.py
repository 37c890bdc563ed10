"""Contexts of a sandbox: its first kernel, which is there from the beginning, and further ones."""

from __future__ import annotations

from typing import Any

import msgspec
from kernelbroker.protocol.errors import BadRequest, NotFound, SessionGone
from kernelbroker.protocol.messages import ContextOptions
from kernelbroker_kernel.contract import WORKSPACE

from ..api.disconnect import Disconnectable
from ..sessions.session import Session
from .handlers import SandboxCall

DEFAULT = "default"
"""The id of the first kernel. Cells that name no context run there."""
JAVASCRIPT = "javascript"
"""The id by which clients name the first kernel for cells in JavaScript, which is in it besides Python."""
_NAMES = {"shell": "bash"}
"""E2B's names of languages that have another one here."""


class NewContext(msgspec.Struct, kw_only=True):
    language: str | None = None
    cwd: str | None = None


class ContextCall(SandboxCall):
    """A call that may name a context."""

    async def context(self, session: Session, context_id: str | None) -> Session:
        """Return a context of a sandbox, the first kernel if `context_id` is None. Raises NotFound."""
        if context_id in (None, DEFAULT, JAVASCRIPT):
            return session
        try:
            return await self.tenant.sessions.context(session.id, str(context_id))
        except (NotFound, SessionGone) as exc:
            raise NotFound(f"context {context_id} was not found") from exc


class Contexts(Disconnectable, ContextCall):
    """`GET` and `POST /contexts`."""

    async def get(self) -> None:
        session = await self.session()
        found = [session, *await self.tenant.sessions.contexts(session.id)]
        contexts = [_described(each) for each in found]
        contexts.insert(1, contexts[0] | {"id": JAVASCRIPT, "language": "javascript"})
        self.reply(contexts)

    async def post(self) -> None:
        asked = self.body_as(NewContext)
        session = await self.session()
        options = ContextOptions(language=asked.language or "python", cwd=asked.cwd)
        async with self.until_disconnected():  # no client would know the context
            context, _ = await self.tenant.sessions.open_context(session.id, options)
            self.reply(_described(context))


class OneContext(ContextCall):
    """`DELETE /contexts/ID`."""

    async def delete(self, context_id: str) -> None:
        _expect_own_kernel(context_id)
        session = await self.session()
        context = await self.context(session, context_id)
        if context is session:  # it cannot end alone: a fresh kernel is in its place
            await self.tenant.sessions.restart(session.id)
        else:
            await self.tenant.sessions.close(context.id)
        self.set_status(204)


class RestartContext(ContextCall):
    """`POST /contexts/ID/restart`."""

    async def post(self, context_id: str) -> None:
        _expect_own_kernel(context_id)
        context = await self.context(await self.session(), context_id)
        await self.tenant.sessions.restart(context.id)
        self.set_status(204)


def _expect_own_kernel(context_id: str) -> None:
    if context_id == JAVASCRIPT:
        raise BadRequest(
            f"context {JAVASCRIPT} is a part of context {DEFAULT}: restart or remove that one"
        )


def _described(context: Session) -> dict[str, Any]:
    language = context.options.language
    return {
        "id": DEFAULT if context.session is None else context.id,
        "language": _NAMES.get(language, language),
        "cwd": context.options.cwd or WORKSPACE,
    }
