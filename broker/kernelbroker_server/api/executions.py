"""Running cells over HTTP, and looking at those that ran."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.errors import BadRequest, NotFound, SessionGone
from kernelbroker.protocol.events import Display, Image, Result, Stderr, Stdout
from kernelbroker.protocol.messages import (
    ExecutionInfo,
    ExecutionList,
    ExecutionRequest,
    Identifier,
    InstallRequest,
    SessionOptions,
)

from ..sessions import packages
from ..sessions.execution import Execution
from ..sessions.session import Session
from . import forms
from .base import ApiHandler, iso_time
from .contract import Content, operation
from .disconnect import Disconnectable


class ExecBody(ExecutionRequest):
    """A cell, and where to run it: `session_id` names a session, opened if there is none.

    Where one is opened, its `template` is `default` if not said.
    """

    session_id: Identifier | None = None
    template: str | None = None
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


class ExecutionWithResult(ExecutionInfo):
    """`result` is null until the execution has ended."""

    result: Result | None = None


_OUTPUT = Content(
    {
        "text/plain": str,
        "text/event-stream": str,
        "application/x-ndjson": str,
        "application/json": CollectedOutput,
    }
)


class StreamingHandler(Disconnectable, ApiHandler):
    """Answers with an execution's events, in the form that the client accepts."""

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


class Exec(StreamingHandler):
    @operation({200: _OUTPUT}, body=ExecBody)
    async def post(self) -> None:
        """Run a cell: in a session, or in a sandbox of its own that is gone afterwards.

        The body is JSON; one of a text type is the code itself. `Accept` chooses the answer's form:
        tags, server-sent events, NDJSON, or one JSON object at the end.
        """
        await self.run(None)

    async def run(self, session_id: str | None) -> None:
        asked = self._asked()
        if session_id is not None and asked.session_id not in (None, session_id):
            raise BadRequest("the session_id of the body is not that of the path")
        opens = asked.template is not None or asked.workspace is not None
        if session_id is not None and opens:
            raise BadRequest(
                "a session keeps the template and the workspace that it was opened with: leave them "
                "out, or have another session opened by POST /api/v1/exec"
            )
        async with self.until_disconnected(), contextlib.AsyncExitStack() as stack:
            session, execution = await self._submit(session_id, asked, stack)
            try:
                await self.answer(execution, 0, forms.TAGS)
            finally:
                if self.gone and asked.on_disconnect == "interrupt":
                    with contextlib.suppress(SessionGone):
                        session.interrupt(execution.id)  # also where it still waits

    async def _submit(
        self, session_id: str | None, asked: ExecBody, stack: contextlib.AsyncExitStack
    ) -> tuple[Session, Execution]:
        """The execution, of now or, under an Idempotency-Key, of an earlier request."""
        registry, key = self.registry, self.idempotency_key()
        options = SessionOptions(
            session_id=session_id or asked.session_id,
            template=self._template(asked),
            workspace=asked.workspace,
        )
        ephemeral = options.session_id is None
        if ephemeral and options.workspace is None:
            options.workspace_retention = 0

        async def submit() -> tuple[Session, Execution]:
            request = asked.request()
            if ephemeral:
                assessment = await registry.judge_for_one(request, options.template)
            if session_id is not None:
                session = registry.get(session_id)
            elif ephemeral and key is None:
                session = await stack.enter_async_context(registry.ephemeral(options))
            elif ephemeral:
                session = await registry.open_for_one(options)
            else:
                session, _ = await registry.open(options)
            try:
                if not ephemeral:
                    assessment = await session.judge(request)
                execution = session.submit(request, assessment=assessment)
            except BaseException:
                if ephemeral and key is not None:
                    registry.close_soon(session, "its one execution was refused")
                raise
            if ephemeral:  # not when all is read: the client may take its time, or ask again
                registry.close_after(session, execution)
            return session, execution

        if key is None:
            return await submit()
        outcome, repeated = await registry.submitted.once(key, self.fingerprint(), submit)
        if repeated:
            self.set_header("Idempotent-Replayed", "true")
        return outcome

    def _template(self, asked: ExecBody) -> str:
        """What was said; else that of the session, if it is open; else what one has by default."""
        if asked.template is not None:
            return asked.template
        with contextlib.suppress(NotFound, SessionGone):
            if asked.session_id is not None:
                return self.registry.get(asked.session_id).options.template
        return SessionOptions().template

    def _asked(self) -> ExecBody:
        if self.request.headers.get("Content-Type", "").startswith("text/"):
            try:
                return ExecBody(code=self.body().decode())
            except UnicodeDecodeError as exc:
                raise BadRequest("the code is not UTF-8") from exc
        return self.body_as(ExecBody)


class SessionExec(Exec):
    @operation({200: _OUTPUT}, body=ExecutionRequest)
    async def post(self, session_id: str) -> None:  # type: ignore[override]
        """Run a cell in a session that is open."""
        await self.run(session_id)


class Packages(StreamingHandler):
    @operation({200: _OUTPUT}, body=InstallRequest)
    async def post(self, session_id: str) -> None:
        """Install packages for a session, as an execution: its output is the installer's.

        `Accept` chooses the answer's form, as where a cell is run.
        """
        session = self.registry.get(session_id)
        execution = await packages.install(session, self.body_as(InstallRequest))
        async with self.until_disconnected():
            await self.answer(execution, 0, forms.TAGS)


class Executions(ApiHandler):
    @operation({200: ExecutionList})
    async def get(self, session_id: str) -> None:
        """List what ran and what waits, oldest first."""
        executions = self.registry.get(session_id).executions.values()
        self.reply(ExecutionList(executions=[ExecutionInfo(**facts(e)) for e in executions]))


class OneExecution(ApiHandler):
    @operation({200: ExecutionWithResult})
    async def get(self, session_id: str, execution_id: str) -> None:
        """Look at an execution, with its result if it has ended."""
        execution = self.registry.get(session_id).execution(execution_id)
        self.reply(ExecutionWithResult(**facts(execution), result=execution.journal.result))


class ExecutionEvents(StreamingHandler):
    @operation({200: _OUTPUT}, query={"after": Annotated[int, msgspec.Meta(ge=0)]})
    async def get(self, session_id: str, execution_id: str) -> None:
        """Replay the events after a `seq`, then follow."""
        execution = self.registry.get(session_id).execution(execution_id)
        after = self.get_query_argument("after", "0")
        if not after.isascii() or not after.isdigit():
            raise BadRequest("after is the seq of the last event that was seen: a whole number")
        async with self.until_disconnected():
            await self.answer(execution, int(after[:18]), forms.NDJSON)


def facts(execution: Execution) -> dict[str, Any]:
    """The fields of its `ExecutionInfo`."""
    result = execution.journal.result
    return {
        "execution_id": execution.id,
        "state": execution.state.value,
        "accepted_at": iso_time(execution.accepted_at),
        "packages": list(execution.packages),
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
