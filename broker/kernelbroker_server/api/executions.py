"""Handlers that run cells over HTTP, and that list and replay executions."""

from __future__ import annotations

import contextlib
from typing import Annotated

import msgspec
from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.events import Display, Image, Result, Stderr, Stdout
from kernelbroker.protocol.messages import (
    ExecutionInfo,
    ExecutionList,
    ExecutionRequest,
    Identifier,
)

from ..service.target import Target
from ..sessions.store import ExecutionLog
from .base import ApiHandler
from .content_negotiation import NDJSON, TAGS, Representation, negotiate
from .descriptions import ExecutionDetails, details, execution_fields
from .disconnect import Disconnectable
from .openapi import Content, operation
from .sessions import Interrupted

_FLUSH_BYTES = 256 * 1024
"""Events that are there at the same time are sent together, up to so many bytes."""


class ExecBody(ExecutionRequest):
    """A cell and its session.

    `session_id` names the session, which is opened if necessary; without it the cell has its own sandbox.
    `template` is that of a new session, `default` if omitted. With `allow_stdin` somebody answers
    `input()`.
    """

    session_id: Identifier | None = None
    template: str | None = None
    workspace: Identifier | None = None
    allow_stdin: bool = False


class CollectedOutput(msgspec.Struct, kw_only=True):
    """An execution as one JSON object: its collected output and its result."""

    execution_id: str
    stdout: str
    stderr: str
    images: list[Image]
    displays: list[Display]
    result: Result


EXECUTION_OUTPUT = Content(
    {
        "text/plain": str,
        "text/event-stream": str,
        "application/x-ndjson": str,
        "application/json": CollectedOutput,
    }
)


class StreamingHandler(Disconnectable, ApiHandler):
    """Sends the events of an execution, in the media type that the client accepts."""

    async def answer(self, log: ExecutionLog, after: int, default: Representation) -> None:
        """Send the events whose `seq` is greater than `after`, up to the result."""
        await self.stream(log, after, negotiate(self.request.headers.get("Accept", ""), default))

    async def stream(self, log: ExecutionLog, after: int, representation: Representation) -> None:
        """As `answer`, in this form."""
        self.set_header("Content-Type", representation.content_type)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")  # otherwise nginx buffers the answer
        self.set_header("X-Execution-ID", log.id)
        if not representation.streamed:
            self.reply(await collect(log))
            return
        await self.flush()
        async with contextlib.aclosing(log.batches(after)) as batches:
            async for batch in batches:
                written = 0
                for stored in batch:
                    data = representation.write(stored)
                    self.write(data)
                    if (written := written + len(data)) >= _FLUSH_BYTES:
                        await self.flush()
                        written = 0
                if written:
                    await self.flush()

    async def follow(self, log: ExecutionLog) -> None:
        """Answer with the events behind the `seq` of the parameter `after`. Raises BadRequest."""
        after = self.get_query_argument("after", "0")
        if not after.isascii() or not after.isdigit():
            raise BadRequest("after must be a whole number: the seq of the last event received")
        async with self.until_disconnected():
            await self.answer(log, int(after[:18]), NDJSON)


class Exec(StreamingHandler):
    @operation({200: EXECUTION_OUTPUT}, body=ExecBody)
    async def post(self) -> None:
        """Run a cell in a session, or without one in a separate sandbox, which is removed afterwards.

        The body is JSON; a body of a text type is the code itself. `Accept` selects the form of the answer:
        tags, server-sent events, NDJSON, or one JSON object at the end.
        """
        body = exec_body(self)
        await self.run(body.request(), target_of(body), allow_stdin=body.allow_stdin)

    async def run(
        self, request: ExecutionRequest, target: Target, *, allow_stdin: bool = False
    ) -> None:
        """Answer with the events of a cell."""
        async with (
            self.until_disconnected(),
            self.tenant.executions.execute(
                request, target, self.idempotency_key(), allow_stdin=allow_stdin
            ) as submitted,
        ):
            if submitted.replayed:
                self.set_header("Idempotent-Replayed", "true")
            try:
                await self.answer(submitted.log, 0, TAGS)
            finally:
                if self.gone and request.on_disconnect == "interrupt":
                    submitted.interrupt()


class SessionExec(Exec):
    @operation({200: EXECUTION_OUTPUT}, body=ExecutionRequest)
    async def post(self, session_id: str) -> None:  # type: ignore[override]
        """Run a cell in an open session."""
        body = exec_body(self)
        await self.run(body.request(), target_of(body, session_id), allow_stdin=body.allow_stdin)


class SubmittingHandler(Disconnectable, ApiHandler):
    """Takes executions that run to their end, whether their client waits or not."""

    async def submit(self, session_id: str | None) -> None:
        body, key = exec_body(self), self.idempotency_key()
        async with self.until_disconnected():  # until it is accepted
            submitted = await self.tenant.executions.accept(
                body.request(), target_of(body, session_id), key, allow_stdin=body.allow_stdin
            )
        if submitted.replayed:
            self.set_header("Idempotent-Replayed", "true")
        self.reply(ExecutionInfo(**execution_fields(submitted.log, submitted.session_id)), 202)


class AllExecutions(SubmittingHandler):
    @operation({202: ExecutionInfo}, body=ExecBody)
    async def post(self) -> None:
        """Submit a cell, and do not wait for its end. It is stored before this is answered.

        Without a session it runs in a separate sandbox, which is removed afterwards.
        """
        await self.submit(None)


class Executions(SubmittingHandler):
    @operation({200: ExecutionList})
    async def get(self, session_id: str) -> None:
        """List the executions of a session, oldest first, also of one that has ended."""
        found = await self.tenant.executions.list(session_id)
        infos = [ExecutionInfo(**execution_fields(each, session_id)) for each in found]
        self.reply(ExecutionList(executions=infos))

    @operation({202: ExecutionInfo}, body=ExecutionRequest)
    async def post(self, session_id: str) -> None:
        """Submit a cell to an open session, and do not wait for its end."""
        await self.submit(session_id)


class OneExecution(ApiHandler):
    @operation({200: ExecutionDetails})
    async def get(self, session_id: str, execution_id: str) -> None:
        """Get an execution, with its result if it has ended. Its session may have ended, too."""
        log = await self.tenant.executions.find(session_id, execution_id)
        self.reply(details(log, session_id))


class LocatedExecution(ApiHandler):
    @operation({200: ExecutionDetails})
    async def get(self, execution_id: str) -> None:
        """Get an execution of any session, with its result if it has ended; the latest with this id."""
        session_id, log = await self.tenant.executions.locate(execution_id)
        self.reply(details(log, session_id))


class InterruptExecution(ApiHandler):
    @operation({202: Interrupted})
    async def post(self, execution_id: str) -> None:
        """Interrupt an execution, or take it out of the queue. Does nothing if it has ended."""
        await self.tenant.executions.interrupt(execution_id)
        self.reply(Interrupted(), 202)


class StdinBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The answer to `input()`. `session_id` is needed if several sessions have executions with this id."""

    value: str
    session_id: Identifier | None = None


class AnswerInput(ApiHandler):
    @operation({204: None}, body=StdinBody)
    async def post(self, execution_id: str) -> None:
        """Answer an execution that waits for input."""
        body = self.body_as(StdinBody)
        await self.tenant.executions.answer(execution_id, body.value, body.session_id)
        self.set_status(204)


class ExecutionEvents(StreamingHandler):
    @operation({200: EXECUTION_OUTPUT}, query={"after": Annotated[int, msgspec.Meta(ge=0)]})
    async def get(self, session_id: str, execution_id: str) -> None:
        """Get the events after a `seq`, then new events as they come, up to the result."""
        await self.follow(await self.tenant.executions.find(session_id, execution_id))


class LocatedEvents(StreamingHandler):
    @operation({200: EXECUTION_OUTPUT}, query={"after": Annotated[int, msgspec.Meta(ge=0)]})
    async def get(self, execution_id: str) -> None:
        """Get the events of an execution of any session after a `seq`, then new ones, up to the result."""
        await self.follow((await self.tenant.executions.locate(execution_id))[1])


def exec_body(handler: ApiHandler) -> ExecBody:
    """Return the body of a request that runs a cell. Raises BadRequest, TooLarge."""
    if handler.request.headers.get("Content-Type", "").startswith("text/"):
        try:
            return ExecBody(code=handler.body().decode())
        except UnicodeDecodeError as exc:
            raise BadRequest("the code is not UTF-8") from exc
    return handler.body_as(ExecBody)


def target_of(body: ExecBody, session_id: str | None = None) -> Target:
    """Return where a cell is to run.

    Args:
        session_id: that of the path, if the path has one.

    Raises:
        BadRequest: the body contradicts the path.
    """
    if session_id is None:
        return Target(session_id=body.session_id, template=body.template, workspace=body.workspace)
    if body.session_id not in (None, session_id):
        raise BadRequest("the session_id of the body differs from that of the path; leave it out")
    if body.workspace is not None:
        raise BadRequest(
            "an open session keeps its template and its workspace: leave them out, or open another "
            "session with POST /api/v1/sessions"
        )
    return Target(session_id, must_exist=True)


async def collect(log: ExecutionLog) -> CollectedOutput:
    """Collect the output until the result."""
    events = [stored.event async for stored in log.follow()]
    result = events[-1]
    assert isinstance(result, Result)
    return CollectedOutput(
        execution_id=log.id,
        stdout="".join(e.content for e in events if isinstance(e, Stdout)),
        stderr="".join(e.content for e in events if isinstance(e, Stderr)),
        images=[e for e in events if isinstance(e, Image)],
        displays=[e for e in events if isinstance(e, Display)],
        result=result,
    )
