"""The project of a session, and operations on it."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import suppress
from typing import Any

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import BadRequest, Conflict, RequestError, SessionGone, TooLarge
from kernelbroker.protocol.events import Display, Result
from kernelbroker.protocol.operations import (
    AGENT_EVENT_MIME,
    AGENT_EVENT_TYPES,
    BROWSING,
    RUNNING,
    TEST_OUTPUT_MIME,
    CodeOperationResponse,
)
from tornado.web import stream_request_body

from ..service import browsing, code_operations, files
from ..service.file_operations import file_operation
from ..sessions.store import ExecutionLog, StoredEvent
from .content_negotiation import JSON, NDJSON, SSE, Representation, negotiate
from .executions import StreamingHandler, collect
from .file_transfer import BYTES, FileTransfer
from .openapi import Content, operation

_ANSWER = Content(
    {
        "application/json": CodeOperationResponse,
        "text/event-stream": str,
        "application/x-ndjson": str,
    }
)
_ERRORS: dict[str | None, type[RequestError]] = {"too_large": TooLarge, "conflict": Conflict}


class CodeOperation(StreamingHandler):
    @operation({200: _ANSWER}, body=dict[str, Any])
    async def post(self, session_id: str, operation: str) -> None:
        """Run an operation on the session's project, or an action of its browser.

        The body has its parameters. Tests, builds, commands and actions are executions; `Accept` selects
        whether their events are streamed (the numbers of tests as `test_output`, the picture of a page as
        `image`), or one answer is sent at the end.
        """
        session = await self.tenant.sessions.resolve(session_id)
        parameters = self.body_as(dict[str, Any])
        async with self.until_disconnected():
            if operation in BROWSING:
                log = await browsing.submit(self.tenant.executions, session, operation, parameters)
                await self._answer_execution(log)
            elif operation in RUNNING:
                on_disconnect = parameters.pop("on_disconnect", "continue")
                if on_disconnect not in ("continue", "interrupt"):
                    raise BadRequest('on_disconnect is "continue" or "interrupt"')
                log = await code_operations.submit(
                    self.tenant.executions, session, operation, parameters
                )
                try:
                    await self._answer_execution(log)
                finally:
                    if self.gone and on_disconnect == "interrupt":
                        with suppress(SessionGone):
                            session.interrupt(log.id)
            else:
                response = await code_operations.operate(
                    session, operation, parameters, self.tenant.forges
                )
                self._answer(response)

    def _answer(self, response: CodeOperationResponse) -> None:
        chosen = negotiate(self.request.headers.get("Accept", ""), JSON)
        if chosen is SSE or chosen is NDJSON:
            self.set_header("Content-Type", chosen.content_type)
            self.finish(
                _line(chosen, "result", {"type": "result", **msgspec.to_builtins(response)})
            )
        else:
            self.reply(response)

    async def _answer_execution(self, log: ExecutionLog) -> None:
        chosen = negotiate(self.request.headers.get("Accept", ""), JSON)
        if chosen is SSE or chosen is NDJSON:
            streaming = Representation(chosen.content_type, lambda stored: _event(chosen, stored))
            await self.stream(log, 0, streaming)
            return
        self.set_header("X-Execution-ID", log.id)
        collected = await collect(log)
        response = code_operations.response_of(collected.result)
        response.stdout, response.stderr = collected.stdout, collected.stderr
        if collected.images:
            picture = collected.images[-1]
            response.screenshot, response.screenshot_mime = picture.content, picture.mime
        self.reply(response)


@stream_request_body
class Project(FileTransfer):
    async def prepare(self) -> None:
        super().prepare()
        if self.request.method == "PUT":
            session = await self.tenant.sessions.resolve(self.path_kwargs["session_id"])
            replace = self.flag("replace")

            async def write(data: AsyncIterable[bytes], length: int | None) -> None:
                code_operations.expect_upload(session)
                await files.write(session, code_operations.ARCHIVE, data, length)
                self._unpacked = await code_operations.unpack(session, replace=replace)

            reported = file_operation(session, "upload", code_operations.ARCHIVE)
            self.receive(session.limits.max_file_bytes, reported, write)

    @operation({200: CodeOperationResponse}, body=BYTES, query={"replace": bool})
    async def put(self, session_id: str) -> None:  # noqa: ARG002  used in `prepare`
        """Upload the project as a tar (also gz, bz2 or xz); `replace=true` replaces an earlier one.

        It is at /workspace/project. An archive with an entry that would leave this directory is refused.
        """
        await self.complete()
        response = self._unpacked
        if not response.success:
            message = response.error or "the archive could not be unpacked"
            raise _ERRORS.get(response.code, BadRequest)(message)
        self.reply(response)


def _event(chosen: Representation, stored: StoredEvent) -> bytes:
    """An event. Those of tests and agents have types of their own; the result is the operation's."""
    event = stored.event
    if isinstance(event, Display) and isinstance(seen := event.data.get(AGENT_EVENT_MIME), dict):
        kind = seen.get("type")
        kind = kind if kind in AGENT_EVENT_TYPES else "agent_event"
        head = {"type": kind, "execution_id": event.execution_id, "seq": event.seq}
        return _line(chosen, kind, {**seen, **head}, event.seq)
    if isinstance(event, Display) and TEST_OUTPUT_MIME in event.data:
        seen = event.data[TEST_OUTPUT_MIME]
        content = seen if isinstance(seen, dict) else {}
        head = {"type": "test_output", "execution_id": event.execution_id, "seq": event.seq}
        return _line(chosen, "test_output", {**content, **head}, event.seq)
    if isinstance(event, Result):
        response = msgspec.to_builtins(code_operations.response_of(event))
        return _line(chosen, "result", {"type": "result", "seq": event.seq, **response}, event.seq)
    return chosen.write(stored)


def _line(chosen: Representation, kind: str, value: dict[str, Any], seq: int = 1) -> bytes:
    data = encode(value)
    if chosen is SSE:
        return f"event: {kind}\nid: {seq}\ndata: ".encode() + data + b"\n\n"
    return data + b"\n"
