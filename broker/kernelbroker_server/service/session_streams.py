"""Long answers of a session's sandbox, beside its executions and transfers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from kernelbroker.protocol.errors import Unavailable

from ..kernels.transfer import GatewayRequest, TransferFailed
from ..sessions.session import Session
from .files import expect


@contextlib.asynccontextmanager
async def streamed(
    session: Session, method: str, target: str, body: bytes = b""
) -> AsyncIterator[GatewayRequest]:
    """Ask the gateway, and yield its answer, which may go on as long as the sandbox does.

    The session is in use meanwhile. The gateway is borrowed only until it answers, so that a stream is no
    transfer that others wait for.

    Raises:
        SessionGone, TooManyRequests, Unavailable: as `Session.borrow`.
        RequestError: what the sandbox refuses the request with.
    """
    with session.streams.one():
        headers = {"Content-Length": str(len(body))}
        async with contextlib.AsyncExitStack() as stack:
            async with session.streams.requests, session.borrow() as gateway:
                answered = await stack.enter_async_context(
                    await gateway.request(method, target, headers)
                )
                if body:
                    await answered.send(body)
                await expect(answered, 200)
            try:
                yield answered
            except TransferFailed as exc:
                session.expect_open()
                raise Unavailable(f"{exc}; the sandbox was replaced", retry_after=1) from exc
