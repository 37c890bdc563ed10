"""Servers that user code has started inside a sandbox, reached through its gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from kernelbroker.protocol.errors import Conflict, Unavailable

from ..kernels.transfer import TransferFailed
from ..kernels.tunnel import NothingListens, Tunnel
from ..sessions.session import Session


class PortClosed(Unavailable):
    """Nothing listens at the port."""


@contextlib.asynccontextmanager
async def connect(session: Session, port: int) -> AsyncIterator[Tunnel]:
    """Connect to a port of the sandbox's loopback interface. The session is in use meanwhile.

    Raises:
        Conflict: the template does not allow it.
        PortClosed: nothing listens there.
        SessionGone, TooManyRequests, Unavailable: as `Session.borrow`.
    """
    _check(session, port)
    with session.streams.one():
        async with contextlib.AsyncExitStack() as stack:
            async with session.streams.requests, session.borrow() as gateway:
                try:
                    connection = await stack.enter_async_context(gateway.tunnel(port))
                except NothingListens:
                    raise PortClosed(
                        f"port {port} of the sandbox is not open: start a server there, for example on "
                        "127.0.0.1",
                        retry_after=1,
                    ) from None
            try:
                yield connection
            except TransferFailed as exc:
                session.expect_open()
                raise Unavailable(f"the server at port {port}: {exc}", retry_after=1) from exc


def _check(session: Session, port: int) -> None:
    allowed, template = session.spec.ports, session.options.template
    if allowed is True or (allowed is not False and port in allowed):
        return
    raise Conflict(
        f"servers at port {port} of sandboxes of the template {template!r} cannot be reached: the operator "
        f"can allow it with templates.{template}.ports = [{port}], or = true for all ports"
    )
