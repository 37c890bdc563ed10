"""Runs a cell as E2B's code interpreter does: one JSON object for each line of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, TypeVar

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import BadRequest, SessionGone, Unavailable
from kernelbroker.protocol.events import Display, Event, Image, Result, Started, Stderr, Stdout
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel.contract import E2B_DATA_MIME

from ..api.disconnect import ClientDisconnected, Disconnectable
from ..service.target import Target
from ..sessions.contexts import language_of
from ..sessions.session import Session
from ..sessions.store import ExecutionLog
from .contexts import JAVASCRIPT, ContextCall

KEEPALIVE_S = 5.0
"""After this time without output a line is sent that clients ignore, so that the connection stays open."""

_FORMS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    E2B_DATA_MIME: "data",
}
"""The names that E2B's `Result` has for MIME types. All other types are `extra`."""

T = TypeVar("T")


class ExecuteBody(msgspec.Struct, kw_only=True):
    """The fields that E2B's clients send. Unknown ones are ignored, since later clients may send more."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class Execute(Disconnectable, ContextCall):
    """`POST /execute`."""

    async def post(self) -> None:
        body = self.body_as(ExecuteBody)
        async with self.until_disconnected():
            if body.context_id is not None and body.language is not None:
                raise BadRequest("send context_id or language, not both")
            name = JAVASCRIPT if body.context_id == JAVASCRIPT else body.language
            language = None if name is None else language_of(name)
            session = await self.context(await self.session(), body.context_id)
            request = ExecutionRequest(
                code=body.code,
                language=language,
                env=body.env_vars or {},
                timeout=session.limits.max_timeout,
                on_error="keep",
                on_disconnect="interrupt",
            )
            target = Target(session.id, must_exist=True)
            async with self.tenant.executions.execute(
                request, target, may_shorten=True
            ) as submitted:
                try:
                    await self._answer(submitted.log, session)
                finally:
                    if self.gone:
                        submitted.interrupt()

    async def _answer(self, log: ExecutionLog, session: Session) -> None:
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")  # otherwise nginx buffers the answer
        connection: Any = self.request.connection
        connection.stream.set_nodelay(True)
        # Other languages than Python show nothing but the value of a cell.
        shows_values = log.request.language != "python"
        async with contextlib.aclosing(_with_pauses(log.follow(0), KEEPALIVE_S)) as events:
            async for stored in events:
                if stored is not None and _was_killed(session, stored.event):
                    # As E2B's proxy does it: their clients then say that the sandbox was killed.
                    self.hang_up()
                    self.gone = True
                    raise ClientDisconnected
                if stored is None:
                    lines: list[dict[str, Any]] = [{"type": "keepalive"}]
                else:
                    lines = lines_of(stored.event, shows_values=shows_values)
                for line in lines:
                    self.write(encode(line) + b"\n")
                if lines:
                    await self.flush()


def _was_killed(session: Session, event: Event) -> bool:
    """Whether this is the end of a cell whose sandbox was killed."""
    if not isinstance(event, Result) or event.success:
        return False
    try:
        session.expect_open()
    except SessionGone:
        return True
    except Unavailable:  # the next broker has it
        pass
    return False


def lines_of(event: Event, *, shows_values: bool = False) -> list[dict[str, Any]]:
    """Return an event as E2B's clients read it.

    Args:
        shows_values: what the cell shows is its value.
    """
    match event:
        case Started(execution_count=int(count)):
            return [{"type": "number_of_executions", "execution_count": count}]
        case Stdout(content=text):
            return [_text("stdout", text)]
        case Stderr(content=text, is_traceback=False):
            return [_text("stderr", text)]
        case Image(mime=mime, content=content, data=data, chart=chart):
            shown = _result({mime: content, **data}, is_main=event.is_result)
            return [shown if chart is None else {**shown, "chart": chart}]
        case Display(data=data):
            return [_result(data, is_main=event.is_result or shows_values)]
        case Result():
            return [*_error(event), {"type": "end_of_execution"}]
    return []


def _text(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text, "timestamp": time.time_ns()}


def _result(data: Mapping[str, Any], *, is_main: bool) -> dict[str, Any]:
    forms = {_FORMS[mime]: value for mime, value in data.items() if mime in _FORMS}
    text = forms.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        forms["text"] = text[1:-1]  # E2B shows the value of a text without its quotes
    extra = {mime: value for mime, value in data.items() if mime not in _FORMS}
    return {"type": "result", "is_main_result": is_main, **forms, "extra": extra}


def _error(event: Result) -> list[dict[str, Any]]:
    detail = event.error_detail
    if detail is None:
        return []
    traceback = "\n".join(detail.traceback) or f"{detail.name}: {detail.value}"
    return [{"type": "error", "name": detail.name, "value": detail.value, "traceback": traceback}]


async def _with_pauses(source: AsyncIterator[T], after: float) -> AsyncGenerator[T | None]:
    """Yield the items, and None whenever none has come for some seconds."""
    following: asyncio.Future[T] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait([following], timeout=after)
            if not done:
                yield None
                continue
            try:
                item = following.result()
            except StopAsyncIteration:
                return
            finally:
                following = None
            yield item
    finally:
        if following is not None:
            following.cancel()
