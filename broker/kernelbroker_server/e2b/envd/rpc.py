"""Calls of E2B's RPC services, by the Connect protocol, as JSON or protobuf."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kernelbroker.protocol.errors import RequestError, SessionGone
from tornado.web import stream_request_body

from ...api.disconnect import Disconnectable
from ...service.tenant_service import TenantService
from ...sessions.session import Session
from ..handlers import SandboxHandler
from . import messages
from .connect import (
    MAX_MESSAGE_BYTES,
    STATUS,
    ConnectError,
    Envelopes,
    Form,
    connect_error,
    decompress,
    end_of_stream,
    envelope,
    form_of,
    timeout_of,
)
from .places import check_user, user_of

logger = logging.getLogger(__name__)

_UNLIMITED = 2**62
_KEEPALIVE_S = 90.0
"""Of a stream whose client names no Keepalive-Ping-Interval."""

_NO_TURN = contextlib.nullcontext()

Fields: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What a method gets besides its request.

    Attributes:
        timeout: of the whole call, in seconds; None if it has none.
        keepalive: seconds between two keepalives of a stream.
    """

    session: Session
    tenant: TenantService
    timeout: float | None
    keepalive: float


Unary: TypeAlias = Callable[[Call, Fields], Awaitable[Fields]]
ServerStream: TypeAlias = Callable[[Call, Fields], AsyncGenerator[Fields, None]]


class ClientStream:
    """A call with many requests and one answer."""

    def __init__(self, call: Call) -> None:
        self.call = call

    async def receive(self, request: Fields) -> None:
        """Handle one request, before the next one is read."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Method:
    """A method, with the names of its messages. It has one of the three kinds of function.

    Attributes:
        takes_turns: with the other transfers of the session.
    """

    request: str
    response: str
    unary: Unary | None = None
    server_stream: ServerStream | None = None
    client_stream: Callable[[Call], ClientStream] | None = None
    takes_turns: bool = False


@stream_request_body
class RpcHandler(SandboxHandler, Disconnectable):
    """A call of one service.

    Args:
        methods: of the service, by name.
    """

    _failure: BaseException | None = None
    _incoming: ClientStream | None = None

    def initialize(self, methods: Mapping[str, Method], **options: Any) -> None:  # type: ignore[override]
        super().initialize(**options)
        self._methods = methods
        self._form = form_of(self.request.headers.get("Content-Type", ""))
        self._body = bytearray()

    async def prepare(self) -> None:
        done = super().prepare()
        if done is not None:
            await done
        if self._finished or self.request.method != "POST":
            return
        method = self._methods.get(self.path_kwargs["method"])
        if method is None:
            self._failure = ConnectError("unimplemented", f"there is no {self.address.path}")
        elif self._form is None or self._form.streaming == (method.unary is not None):
            self._failure = ConnectError(
                "invalid_argument",
                "the Content-Type does not fit the method; see the Connect protocol",
            )
            self._form = None
        else:
            self._method = method
            encoding = self.request.headers.get("Connect-Content-Encoding", "")
            self._envelopes = Envelopes(encoding)
            if method.client_stream is not None:
                connection: Any = self.request.connection
                connection.set_max_body_size(_UNLIMITED)
                connection.set_body_timeout(_UNLIMITED)
                try:
                    self._incoming = method.client_stream(await self._call())
                except Exception as exc:
                    self._failure = exc

    async def data_received(self, chunk: bytes) -> None:
        if self._failure is not None:
            return
        if self._incoming is None:
            self._body += chunk
            if len(self._body) > MAX_MESSAGE_BYTES + 64:
                self._failure = ConnectError("resource_exhausted", "the request is too large")
            return
        try:
            for message in self._envelopes.feed(chunk):
                await self._incoming.receive(self._decode(message))
        except Exception as exc:
            self._failure = exc

    async def post(self, method: str) -> None:  # noqa: ARG002  used in `prepare`
        form = self._form or Form(binary=False, streaming=False)
        try:
            async with self.until_disconnected():
                if self._failure is not None:
                    raise self._failure
                if self._incoming is not None:
                    self._envelopes.expect_end()
                    await self._answer_stream(form, {})
                elif form.streaming:
                    await self._stream(form)
                else:
                    await self._answer(form)
        except (RequestError, ConnectError, messages.InvalidMessage, TimeoutError) as exc:
            await self._fail(form, exc)
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            if self.gone:
                raise
            logger.exception("%s failed", self.address.path)
            await self._fail(form, exc)

    async def _call(self) -> Call:
        headers = self.request.headers
        check_user(user_of(headers.get("Authorization", "")))
        interval = headers.get("Keepalive-Ping-Interval", "")
        keepalive = float(interval) if interval.isascii() and interval.isdigit() else _KEEPALIVE_S
        timeout = timeout_of(headers.get("Connect-Timeout-Ms"))
        session = await self.session()
        return Call(session, self.tenant, timeout, min(max(keepalive, 1.0), 3600.0))

    def _decode(self, message: bytes) -> Fields:
        assert self._form is not None, "checked in `prepare`"
        return messages.decode(self._method.request, message, binary=self._form.binary)

    def _encode(self, fields: Fields, form: Form) -> bytes:
        return messages.encode(self._method.response, fields, binary=form.binary)

    async def _answer(self, form: Form) -> None:
        assert self._method.unary is not None
        body = decompress(bytes(self._body), self.request.headers.get("Content-Encoding", ""))
        call = await self._call()
        async with asyncio.timeout(call.timeout):
            turn = call.session.streams.transfers if self._method.takes_turns else _NO_TURN
            async with turn:
                answer = await self._method.unary(call, self._decode(body))
        self.set_header("Content-Type", form.content_type)
        self.finish(self._encode(answer, form))

    async def _stream(self, form: Form) -> None:
        assert self._method.server_stream is not None
        requests = [*self._envelopes.feed(bytes(self._body))]
        self._envelopes.expect_end()
        if len(requests) != 1:
            raise ConnectError("invalid_argument", "the request of this method is one message")
        call = await self._call()
        answers = self._method.server_stream(call, self._decode(requests[0]))
        async with asyncio.timeout(call.timeout), contextlib.aclosing(answers):
            async for answer in answers:
                self.set_header("Content-Type", form.content_type)
                self.write(envelope(self._encode(answer, form)))
                await self.flush()
        self.finish(end_of_stream(None))

    async def _answer_stream(self, form: Form, answer: Fields) -> None:
        self.set_header("Content-Type", form.content_type)
        self.finish(envelope(self._encode(answer, form)) + end_of_stream(None))

    async def _fail(self, form: Form, error: BaseException) -> None:
        if isinstance(error, TimeoutError):
            error = ConnectError("deadline_exceeded", "the call took longer than its timeout")
        elif isinstance(error, messages.InvalidMessage):
            error = ConnectError("invalid_argument", str(error))
        if isinstance(error, SessionGone) and self._headers_written:
            # As E2B's proxy does it: their clients then say that the sandbox was killed.
            self.hang_up()
            self.gone = True
            self.finish()
            return
        failed = connect_error(error)
        if self._headers_written or form.streaming:
            if not self._headers_written:
                self.set_header("Content-Type", form.content_type)
            self.finish(end_of_stream(failed))
            return
        self.set_status(STATUS[failed.code])
        self.set_header("Content-Type", "application/json")
        self.finish(failed.encode())
