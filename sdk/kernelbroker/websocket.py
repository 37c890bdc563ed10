"""Opens a session on a WebSocket, opens it again after a lost connection, and closes the WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from random import SystemRandom

from msgspec import structs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from .discovery import Address
from .http_errors import error_from_answer, error_from_wire
from .http_request import call
from .protocol.codec import decode_incoming, decode_operation, encode
from .protocol.errors import (
    BadRequest,
    ConnectionFailed,
    ConnectionLost,
    KernelBrokerError,
    ProtocolError,
    SessionGone,
    Unauthorized,
    Unavailable,
)
from .protocol.messages import (
    Close,
    Closed,
    Done,
    ErrorReply,
    Open,
    Opened,
    Operation,
    SessionInfo,
)

RETRY_DELAYS = (0.0, 0.1, 0.3, 1.0, 2.0)
FURTHER_DELAYS: Iterable[float] = repeat(4.0)
"""Seconds before each try to connect again, jittered."""
RECONNECT_TIMEOUT = 60.0
"""Sandboxes wait as long for a broker."""
MAX_MESSAGE = 32 * 2**20
PING_INTERVAL = 20.0
CLOSE_TIMEOUT = 2.0
GIVE_UP_TIMEOUT = 0.5
"""Seconds to close a WebSocket whose session is still being opened."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait for the broker.

    Attributes:
        answer: for a connection, or an answer to a request.
        opening: for a session. The broker waits for a free sandbox before it refuses.
        reconnecting: for a broker that is away, until a session's lost connection is given up.
    """

    answer: float
    opening: float
    reconnecting: float = RECONNECT_TIMEOUT


async def connect_session(
    address: Address,
    request: Open,
    timeouts: Timeouts,
    farewell: Close | None,
    known: SessionInfo | None = None,
) -> tuple[ClientConnection, Opened]:
    """Connect, and open the session.

    If this is cancelled or fails, the session may be open already. It is then closed, if there is a
    `farewell` to close it with.

    Args:
        known: the session must be this one, not a new one under the same id.

    Raises:
        ConnectionFailed: the broker cannot be reached, or does not answer in time.
        SessionGone: the `known` session has ended.
        RequestError: the broker refused.
    """
    if known is not None:
        request = structs.replace(request, created_at=known.created_at)
    data, token = checked(request), address.token
    try:
        websocket = await connect(
            address.websocket_url,
            additional_headers=address.headers,
            compression=None,  # It would cost latency, and most brokers are on this machine.
            max_size=MAX_MESSAGE,
            open_timeout=timeouts.answer,
            ping_interval=PING_INTERVAL,
            close_timeout=CLOSE_TIMEOUT,
            proxy=address.connections.proxy,
            ssl=address.ssl_context() if address.is_tls else None,
        )
    except InvalidStatus as exc:
        response = exc.response
        error = error_from_answer(address, response.status_code, bytes(response.body or b""))
        if isinstance(error, Unauthorized) and address.renew(token):
            return await connect_session(address, request, timeouts, farewell, known)
        raise error from exc
    except (OSError, WebSocketException) as exc:
        raise address.unreachable(exc) from exc
    try:
        async with asyncio.timeout(timeouts.opening):
            await websocket.send(data, text=True)
            opened = await _opened(address, websocket)
        return websocket, opened
    except TimeoutError as exc:
        await disconnect(websocket, farewell, GIVE_UP_TIMEOUT)
        raise ConnectionFailed(
            f"the broker at {address.url} opened no session in {timeouts.opening:g} s; its pool may "
            "be busy (see `pool_status`): try again, or give a longer `open_timeout`"
        ) from exc
    except ConnectionClosed as exc:
        if farewell is not None:  # The session may be open although the answer was lost.
            path = f"/api/v1/sessions/{request.session_id}"
            with suppress(KernelBrokerError):
                await call(address, "DELETE", path, CLOSE_TIMEOUT)
        raise address.unreachable(exc) from exc
    except KernelBrokerError as exc:
        await disconnect(websocket, None)
        if known is not None and isinstance(exc, BadRequest) and "`created_at`" in str(exc):
            # A broker of before 1.0 does not know the field.
            request = structs.replace(request, created_at=None)
            websocket, opened = await connect_session(address, request, timeouts, farewell)
            if opened.session.created_at == known.created_at:
                return websocket, opened
            await disconnect(websocket, Close())
            raise SessionGone(
                "the broker no longer knows the session, and its state is lost"
            ) from None
        raise
    except BaseException:
        await disconnect(websocket, farewell, GIVE_UP_TIMEOUT)
        raise


async def reconnect_session(
    address: Address, request: Open, timeouts: Timeouts, known: SessionInfo
) -> tuple[ClientConnection, Opened]:
    """Connect to the `known` session again, with a pause after each attempt that fails.

    Raises:
        SessionGone: it has ended, or the broker has lost it.
        ConnectionLost: it could not be reached.
        RequestError: the broker refused.
    """
    loop = asyncio.get_running_loop()
    problem: KernelBrokerError | None = None
    given_up = loop.time() + timeouts.reconnecting
    for delay in chain(RETRY_DELAYS, FURTHER_DELAYS):
        await asyncio.sleep(delay * SystemRandom().uniform(0.5, 1.0))
        if loop.time() >= given_up:
            break
        try:
            return await connect_session(address, request, timeouts, None, known)
        except (ConnectionFailed, Unavailable) as exc:
            problem = exc
    raise ConnectionLost(f"the connection was lost and could not be replaced: {problem}")


async def _opened(address: Address, websocket: ClientConnection) -> Opened:
    while True:
        match decode_incoming(await websocket.recv(decode=False)):
            case Opened() as opened:
                return opened
            case ErrorReply(error=error):
                raise error_from_wire(address, error)
            case Closed(reason=reason):
                raise SessionGone(f"the session has ended: {reason}")


def checked(operation: Operation) -> bytes:
    """Return the operation as JSON, checked by the broker's rules.

    Raises:
        BadRequest: the broker would refuse it.
    """
    data = encode(operation)
    try:
        decode_operation(data)
    except ProtocolError as exc:
        raise BadRequest(str(exc)) from exc
    return data


async def disconnect(
    websocket: ClientConnection, farewell: Close | None, timeout: float = CLOSE_TIMEOUT
) -> None:
    """Close the connection, and with a `farewell` the session before it, in `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            if farewell is not None:
                await websocket.send(encode(farewell), text=True)
                await _session_closed(websocket)
            await asyncio.gather(websocket.close(), _drain(websocket))
    except (TimeoutError, ConnectionClosed, ProtocolError):
        pass
    finally:
        websocket.transport.abort()


async def _session_closed(websocket: ClientConnection) -> None:
    """Wait for the answer: the broker may drop a request whose connection ends before it is done."""
    while True:
        match decode_incoming(await websocket.recv(decode=False)):
            case Done(op="close") | Closed() | ErrorReply(op="open" | "close"):
                return


async def _drain(websocket: ClientConnection) -> None:
    """Read and drop what arrives: a broker that cannot send its output cannot answer a close."""
    with suppress(ConnectionClosed):
        while True:
            await websocket.recv(decode=False)
