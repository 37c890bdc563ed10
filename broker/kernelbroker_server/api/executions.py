"""Running cells over HTTP, and looking at those that ran."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from kernelbroker.protocol.errors import BadRequest, SessionGone
from kernelbroker.protocol.events import Display, Image, Result, Stderr, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, Identifier, SessionOptions
from tornado.iostream import StreamClosedError

from ..sessions.execution import Execution
from ..sessions.session import Session
from . import forms
from .base import ApiHandler, Service, iso_time


class ExecBody(ExecutionRequest):
    """A cell, and where to run it: `session_id` names a session, opened if there is none."""

    session_id: Identifier | None = None
    template: str = "default"
    workspace: Identifier | None = None

    def request(self) -> ExecutionRequest:
        fields = ExecutionRequest.__struct_fields__
        return ExecutionRequest(**{name: getattr(self, name) for name in fields})


class CollectedOutput(msgspec.Struct, kw_only=True):
    """An execution as one JSON body: its output, gathered, and its result."""

    execution_id: str
    stdout: str
    stderr: str
    images: list[Image]
    displays: list[Display]
    result: Result


class StreamingHandler(ApiHandler):
    """Answers with an execution's events, in the form that the client accepts."""

    def initialize(self, service: Service) -> None:
        super().initialize(service)
        self._task: asyncio.Task[object] | None = None
        self._gone = False

    def on_connection_close(self) -> None:
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    async def answer(self, execution: Execution, after: int, default: forms.Form) -> None:
        """Send everything after `after`, until the result."""
        form = forms.choose(self.request.headers.get("Accept", ""), default)
        self.set_header("Content-Type", form.content_type)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")  # else nginx gathers what should be seen at once
        self.set_header("X-Execution-ID", execution.id)
        if not form.streamed:
            self.reply(await collect(execution))
            return
        await self.flush()
        async for entry in execution.journal.follow(after):
            if data := form.write(entry):
                self.write(data)
                await self.flush()

    @contextlib.asynccontextmanager
    async def until_disconnected(self) -> AsyncIterator[None]:
        """Let the client go away at any moment: the block is cancelled, the request is over."""
        self._task = asyncio.current_task()
        try:
            yield
        except (asyncio.CancelledError, StreamClosedError):
            if not self._gone:
                raise
        finally:
            self._task = None


class Exec(StreamingHandler):
    """POST /exec and POST /sessions/{id}/exec: run a cell.

    The body is JSON; one of a text type is the code itself.
    """

    async def post(self, session_id: str | None = None) -> None:
        asked = self._asked()
        if session_id is not None and asked.session_id not in (None, session_id):
            raise BadRequest("the session_id of the body is not that of the path")
        async with self.until_disconnected(), contextlib.AsyncExitStack() as stack:
            session = await self._session(session_id, asked, stack)
            execution = session.submit(asked.request())
            try:
                await self.answer(execution, 0, forms.TAGS)
            finally:
                if self._gone and asked.on_disconnect == "interrupt":
                    with contextlib.suppress(SessionGone):
                        session.interrupt(execution.id)  # also where it still waits

    async def _session(
        self, session_id: str | None, asked: ExecBody, stack: contextlib.AsyncExitStack
    ) -> Session:
        registry = self.service.registry
        if session_id is not None:
            return registry.get(session_id)
        options = SessionOptions(
            session_id=asked.session_id, template=asked.template, workspace=asked.workspace
        )
        if asked.session_id is not None:
            return (await registry.open(options))[0]
        if asked.workspace is None:
            options.workspace_retention = 0
        return await stack.enter_async_context(registry.ephemeral(options))

    def _asked(self) -> ExecBody:
        if self.request.headers.get("Content-Type", "").startswith("text/"):
            try:
                return ExecBody(code=self.body().decode())
            except UnicodeDecodeError as exc:
                raise BadRequest("the code is not UTF-8") from exc
        return self.body_as(ExecBody)


class Executions(ApiHandler):
    """GET /sessions/{id}/executions: what ran and what waits, oldest first."""

    async def get(self, session_id: str) -> None:
        session = self.service.registry.get(session_id)
        self.reply({"executions": [summary(e) for e in session.executions.values()]})


class OneExecution(ApiHandler):
    """GET /sessions/{id}/executions/{execution_id}: one, with its result if it has ended."""

    async def get(self, session_id: str, execution_id: str) -> None:
        execution = self.service.registry.get(session_id).execution(execution_id)
        self.reply({**summary(execution), "result": execution.journal.result})


class ExecutionEvents(StreamingHandler):
    """GET /sessions/{id}/executions/{execution_id}/events?after=SEQ: replay, then follow."""

    async def get(self, session_id: str, execution_id: str) -> None:
        execution = self.service.registry.get(session_id).execution(execution_id)
        after = self.get_query_argument("after", "0")
        if not after.isascii() or not after.isdigit():
            raise BadRequest("after is the seq of the last event that was seen: a whole number")
        async with self.until_disconnected():
            await self.answer(execution, int(after[:18]), forms.NDJSON)


def summary(execution: Execution) -> dict[str, object]:
    result = execution.journal.result
    return {
        "execution_id": execution.id,
        "state": execution.state,
        "accepted_at": iso_time(execution.accepted_at),
        "success": result.success if result else None,
        "error": result.error if result else None,
        "execution_time": result.execution_time if result else None,
    }


async def collect(execution: Execution) -> CollectedOutput:
    """Wait for the result, and gather the output on the way."""
    events = [entry.event async for entry in execution.journal.follow()]
    result = events[-1]
    assert isinstance(result, Result)
    return CollectedOutput(
        execution_id=execution.id,
        stdout="".join(e.content for e in events if isinstance(e, Stdout)),
        stderr="".join(e.content for e in events if isinstance(e, Stderr)),
        images=[e for e in events if isinstance(e, Image)],
        displays=[e for e in events if isinstance(e, Display)],
        result=result,
    )
