"""The WebSocket /api/v1/events: all sessions of a tenant as they change, and the output of executions.

A connection first gets the open sessions, and then what changes. It may ask for the executions of sessions
(`watch`), and for the events of executions (`follow`), also of sessions that have ended. Each execution
has its own cursor, and a slow client delays no other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import (
    BadRequest,
    KernelBrokerError,
    NotFound,
    ProtocolError,
    SessionGone,
    TooManyRequests,
)
from kernelbroker.protocol.messages import Identifier
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError

from ..sessions.store import ExecutionLog, ExecutionSummary
from .base import Authenticated, error_body
from .descriptions import details, execution_fields
from .text_frames import WebSocket, write_texts

logger = logging.getLogger(__name__)

_MAX_TASKS = 128
"""Sessions and executions that one connection may watch and follow at once."""


class Watch(msgspec.Struct, tag_field="op", tag="watch", kw_only=True, forbid_unknown_fields=True):
    """Send the executions of a session, now and as they are accepted."""

    session_id: Identifier


class Unwatch(
    msgspec.Struct, tag_field="op", tag="unwatch", kw_only=True, forbid_unknown_fields=True
):
    session_id: Identifier


class Follow(
    msgspec.Struct, tag_field="op", tag="follow", kw_only=True, forbid_unknown_fields=True
):
    """Send an execution, and its events whose `seq` is greater than `after`, up to the result."""

    session_id: Identifier
    execution_id: Identifier
    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class Unfollow(
    msgspec.Struct, tag_field="op", tag="unfollow", kw_only=True, forbid_unknown_fields=True
):
    session_id: Identifier
    execution_id: Identifier


_Operation: TypeAlias = Watch | Unwatch | Follow | Unfollow
_Key: TypeAlias = tuple[str, ...]


class Events(Authenticated, WebSocket):
    """One client's connection."""

    _union: ClassVar[Any] = _Operation

    async def get(self, *args: Any, **kwargs: Any) -> None:
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise BadRequest("this path speaks WebSocket: connect with a WebSocket client")
        await super().get(*args, **kwargs)

    def check_origin(self, origin: str) -> bool:
        """Refuse web pages of other origins. Raises HTTPError."""
        if super().check_origin(origin) or origin.lower() in self.service.allowed_origins:
            return True
        raise HTTPError(403)

    def open(self, *_args: str, **_kwargs: str) -> None:
        self.set_nodelay(True)
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self.service.websockets.add(self)
        self._start((), self._send_sessions())

    def on_close(self) -> None:
        if self not in self.service.websockets:  # refused, so it was never opened
            return
        self.service.websockets.discard(self)
        for task in self._tasks.values():
            task.cancel()

    async def last_words(self) -> None:
        """Nothing needs to be sent: the client connects again, and goes on where it was."""

    async def on_message(self, message: str | bytes) -> None:
        try:
            operation: _Operation = decode_as(message, self._union)
            match operation:
                case Watch(session_id=session):
                    self._start((session,), self._watch(session))
                case Follow(session_id=session, execution_id=execution, after=after):
                    self._start((session, execution), self._follow(session, execution, after))
                case Unwatch(session_id=session):
                    self._stop((session,))
                case Unfollow(session_id=session, execution_id=execution):
                    self._stop((session, execution))
        except (ProtocolError, KernelBrokerError) as exc:
            with contextlib.suppress(WebSocketClosedError, StreamClosedError):
                await self._send({"type": "error", "error": error_body(exc, self.request_id)})

    def _start(self, key: _Key, work: Coroutine[Any, Any, None]) -> None:
        """Do this until the connection closes, in place of what was done under the key before."""
        self._stop(key)
        if len(self._tasks) >= _MAX_TASKS:
            work.close()
            raise TooManyRequests("too much is followed on this connection: unfollow something")
        task = asyncio.create_task(self._guarded(key, work))
        self._tasks[key] = task

        def ended(task: asyncio.Task[None]) -> None:
            work.close()  # a task that was cancelled before its first step does not close it
            if self._tasks.get(key) is task:
                del self._tasks[key]

        task.add_done_callback(ended)

    def _stop(self, key: _Key) -> None:
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    async def _guarded(self, key: _Key, work: Coroutine[Any, Any, None]) -> None:
        named = dict(zip(("session_id", "execution_id"), key, strict=False))
        try:
            with contextlib.suppress(WebSocketClosedError, StreamClosedError):
                try:
                    await work
                except KernelBrokerError as exc:
                    body = error_body(exc, self.request_id)
                    await self._send({"type": "error", "error": body, **named})
        except Exception:
            logger.exception("a WebSocket task failed")
            self.close(1011, "an internal error of the broker")

    async def _send(self, message: object) -> None:
        await self.write_message(encode(message))

    # What is sent.

    async def _send_sessions(self) -> None:
        live = self.service.live.of(self.tenant)
        with live.watched() as changed:
            sent = dict(live.sessions)
            confirmations = live.confirmations
            await self.write_message(
                b'{"type":"sessions","sessions":[%s],"confirmations":%s}'
                % (b",".join(sent.values()), confirmations)
            )
            while True:
                await changed.wait()
                changed.clear()
                present = dict(live.sessions)
                for session_id, json in present.items():
                    if sent.get(session_id) != json:
                        await self.write_message(b'{"type":"session","session":%s}' % json)
                for session_id in sent.keys() - present.keys():
                    await self._send({"type": "session_closed", "session_id": session_id})
                sent = present
                if confirmations != live.confirmations:
                    confirmations = live.confirmations
                    await self.write_message(
                        b'{"type":"confirmations","confirmations":%s}' % confirmations
                    )

    async def _watch(self, session_id: str) -> None:
        with contextlib.ExitStack() as stack:
            try:
                session = await self.tenant.sessions.resolve(session_id)
                created = stack.enter_context(session.watch())
            except (NotFound, SessionGone):
                created = None
            found = await self.tenant.executions.list(session_id)
            listed = [_described(each, session_id) for each in found]
            await self._send({"type": "executions", "session_id": session_id, "executions": listed})
            while created is not None and (log := await created.get()) is not None:
                await self._send_execution(log, session_id)
            reason = await self.service.store.closed_reason(self.tenant.name, session_id)
            await self._send({"type": "ended", "session_id": session_id, "reason": reason})

    async def _follow(self, session_id: str, execution_id: str, after: int) -> None:
        log = await self.tenant.executions.find(session_id, execution_id)
        await self._send_execution(log, session_id)
        head = b'{"type":"event","session_id":%s,"event":' % encode(session_id)
        async with contextlib.aclosing(log.batches(after)) as batches:
            async for batch in batches:
                await write_texts(self, (b"%s%s}" % (head, stored.json) for stored in batch))

    async def _send_execution(self, log: ExecutionLog, session_id: str) -> None:
        described = _described(log, session_id)
        await self._send({"type": "execution", "session_id": session_id, "execution": described})


def _described(log: ExecutionLog | ExecutionSummary, session_id: str) -> dict[str, Any]:
    """The fields of an execution, with its code if that is in memory, and without its result."""
    if isinstance(log, ExecutionSummary):
        return execution_fields(log, session_id)
    return msgspec.structs.asdict(details(log, session_id)) | {"result": None}
