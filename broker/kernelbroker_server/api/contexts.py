"""Contexts over HTTP: further kernels of a session. Each is also a session under its own id."""

from __future__ import annotations

from kernelbroker.protocol.messages import (
    ContextOptions,
    ExecutionInfo,
    ExecutionList,
    ExecutionRequest,
    SessionInfo,
    SessionList,
)

from .base import ApiHandler
from .descriptions import execution_fields, session_info
from .disconnect import Disconnectable
from .executions import (
    EXECUTION_OUTPUT,
    Exec,
    SubmittingHandler,
    exec_body,
    target_of,
)
from .openapi import operation
from .sessions import Interrupted


class Contexts(Disconnectable, ApiHandler):
    @operation({200: SessionList})
    async def get(self, session_id: str) -> None:
        """List the contexts of a session, oldest first."""
        contexts = await self.tenant.sessions.contexts(session_id)
        self.reply(SessionList(sessions=[session_info(context) for context in contexts]))

    @operation({201: SessionInfo, 200: SessionInfo}, body=ContextOptions)
    async def post(self, session_id: str) -> None:
        """Open a context: one more kernel in the session's sandbox, with its own variables.

        The status is 200 if a context with this id is open already.
        """
        options, key = self.body_as(ContextOptions), self.idempotency_key()
        async with self.until_disconnected():  # no client would know the context
            context, is_new = await self.tenant.sessions.open_context(session_id, options, key)
            self.reply(session_info(context), 201 if is_new else 200)


class OneContext(ApiHandler):
    @operation({200: SessionInfo})
    async def get(self, session_id: str, context_id: str) -> None:
        """Get a context."""
        context = await self.tenant.sessions.context(session_id, context_id)
        self.reply(session_info(context))

    @operation({204: None})
    async def delete(self, session_id: str, context_id: str) -> None:
        """Close a context: its kernel ends."""
        await self.tenant.sessions.context(session_id, context_id)
        await self.tenant.sessions.close(context_id)
        self.set_status(204)


class InterruptContext(ApiHandler):
    @operation({202: Interrupted})
    async def post(self, session_id: str, context_id: str) -> None:
        """Raise KeyboardInterrupt in the running cell of a context. Waiting cells stay queued."""
        (await self.tenant.sessions.context(session_id, context_id)).interrupt()
        self.reply(Interrupted(), 202)


class RestartContext(ApiHandler):
    @operation({200: SessionInfo})
    async def post(self, session_id: str, context_id: str) -> None:
        """Replace the kernel of a context. Its variables are lost; files and other contexts stay."""
        await self.tenant.sessions.context(session_id, context_id)
        context = await self.tenant.sessions.restart(context_id)
        self.reply(session_info(context))


class ContextExec(Exec):
    @operation({200: EXECUTION_OUTPUT}, body=ExecutionRequest)
    async def post(self, session_id: str, context_id: str) -> None:  # type: ignore[override]
        """Run a cell in a context."""
        body = exec_body(self)
        await self.tenant.sessions.context(session_id, context_id)
        await self.run(body.request(), target_of(body, context_id))


class ContextExecutions(SubmittingHandler):
    @operation({200: ExecutionList})
    async def get(self, session_id: str, context_id: str) -> None:
        """List the executions of a context, oldest first."""
        await self.tenant.sessions.context(session_id, context_id)
        found = await self.tenant.executions.list(context_id)
        infos = [ExecutionInfo(**execution_fields(each, context_id)) for each in found]
        self.reply(ExecutionList(executions=infos))

    @operation({202: ExecutionInfo}, body=ExecutionRequest)
    async def post(self, session_id: str, context_id: str) -> None:
        """Submit a cell to a context, and do not wait for its end."""
        await self.tenant.sessions.context(session_id, context_id)
        await self.submit(context_id)
