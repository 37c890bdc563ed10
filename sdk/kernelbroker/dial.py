"""A WebSocket to the broker with a session opened on it, once or again, and its orderly end."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from .discovery import Address
from .protocol.codec import decode_incoming, decode_operation, encode
from .protocol.errors import (
    BadRequest,
    ConnectionFailed,
    ConnectionLost,
    KernelBrokerError,
    ProtocolError,
    SessionGone,
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
from .rest import from_wire, refusal

RETRY_DELAYS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds before each try to connect again, jittered."""
MAX_MESSAGE = 32 * 2**20
PING_INTERVAL = 20.0
CLOSE_TIMEOUT = 2.0
GIVE_UP_TIMEOUT = 0.5
"""The same for a session that is still being opened: whoever gives up has waited enough."""


async def dial(
    address: Address, request: Open, timeout: float, farewell: Close | None
) -> tuple[ClientConnection, SessionInfo]:
    """Connect, and open the session; each may take `timeout` seconds.

    Given up half-way, the session may be open already; `farewell` is then sent behind.

    Raises:
        ConnectionFailed: no broker there, or no answer in time.
        RequestError: the broker refused.
    """
    data = checked(request)
    try:
        websocket = await connect(
            address.websocket_url,
            additional_headers=address.headers,
            compression=None,  # It would cost latency, and most brokers are on this machine.
            max_size=MAX_MESSAGE,
            open_timeout=timeout,
            ping_interval=PING_INTERVAL,
            close_timeout=CLOSE_TIMEOUT,
            proxy=None,
        )
    except InvalidStatus as exc:
        response = exc.response
        raise refusal(address, response.status_code, bytes(response.body or b"")) from exc
    except (OSError, WebSocketException) as exc:
        raise address.unreachable(exc) from exc
    try:
        async with asyncio.timeout(timeout):
            await websocket.send(data, text=True)
            return websocket, await _opened(address, websocket)
    except TimeoutError as exc:
        await hang_up(websocket, farewell, GIVE_UP_TIMEOUT)
        raise ConnectionFailed(
            f"the broker at {address.url} opened no session in {timeout:g} s; its pool may be busy "
            "(see `pool_status`): try again, or give `connect` a longer timeout"
        ) from exc
    except ConnectionClosed as exc:
        raise address.unreachable(exc) from exc
    except KernelBrokerError:
        await hang_up(websocket, None)
        raise
    except BaseException:
        await hang_up(websocket, farewell, GIVE_UP_TIMEOUT)
        raise


async def dial_again(
    address: Address, request: Open, timeout: float, known: SessionInfo
) -> tuple[ClientConnection, SessionInfo]:
    """Connect to the session that is `known`, with a pause after each try that fails.

    Raises:
        SessionGone: the broker has another one under this id, which is closed again.
        ConnectionLost: it could not be reached.
        RequestError: the broker refused.
    """
    problem: KernelBrokerError | None = None
    for delay in RETRY_DELAYS:
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))
        try:
            websocket, info = await dial(address, request, timeout, None)
        except (ConnectionFailed, Unavailable) as exc:
            problem = exc
            continue
        if info.created_at != known.created_at:
            await hang_up(websocket, Close())
            raise SessionGone("the broker no longer knows the session, and its state is lost")
        return websocket, info
    raise ConnectionLost(f"the connection was lost and could not be replaced: {problem}")


async def _opened(address: Address, websocket: ClientConnection) -> SessionInfo:
    while True:
        match decode_incoming(await websocket.recv(decode=False)):
            case Opened(session=info):
                return info
            case ErrorReply(error=error):
                raise from_wire(address, error)
            case Closed(reason=reason):
                raise SessionGone(f"the session has ended: {reason}")


def checked(operation: Operation) -> bytes:
    """The operation as JSON, after the very check that the broker makes."""
    data = encode(operation)
    try:
        decode_operation(data)
    except ProtocolError as exc:
        raise BadRequest(str(exc)) from exc
    return data


async def hang_up(
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
    """Wait for the answer; a broker may drop what is not done yet when the connection ends."""
    while True:
        match decode_incoming(await websocket.recv(decode=False)):
            case Done(op="close") | Closed() | ErrorReply(op="open" | "close"):
                return


async def _drain(websocket: ClientConnection) -> None:
    """Read what is under way: a broker whose output is stuck does not come to answer a close."""
    with suppress(ConnectionClosed):
        while True:
            await websocket.recv(decode=False)
