"""A handle of an execution that goes on by itself: its client may leave, and ask for the result later.

A handle holds no connection and no task. Its calls are requests over HTTP, which are repeated while the
broker cannot be reached, as when it is restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec

from .callbacks import collect
from .discovery import Address
from .http_request import call
from .protocol import events
from .protocol.codec import decode_as, encode
from .protocol.errors import (
    BadRequest,
    ConnectionFailed,
    ConnectionLost,
    NotFound,
    ProtocolError,
    SessionGone,
    Unavailable,
)
from .protocol.events import Result
from .protocol.messages import ExecutionInfo, ExecutionRequest
from .results import ExecutionResult
from .session_requests import SessionRequests

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds without any answer of the broker after which a call fails."""
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 3.0
"""Seconds between two tries."""
_API = "/api/v1"


class ExecutionHandle:
    """An execution that was submitted, made by `Session.submit`, `Broker.submit` and `attach_execution`.

    The execution runs to its end, whether its client waits or not. Any program with a token of the same
    tenant gets a handle of it by its id, also when it has ended and its session is closed; the broker
    keeps it for a time (its `result_retention`), also if it is restarted or killed.
    """

    def __init__(
        self, address: Address, timeout: float, execution_id: str, session_id: str
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._execution_id = execution_id
        self._session_id = session_id
        self._requests = SessionRequests(address, timeout, _api)

    @property
    def execution_id(self) -> str:
        """The id, for `Broker.attach_execution`."""
        return self._execution_id

    @property
    def session_id(self) -> str:
        """The id of the session in which it runs or ran."""
        return self._session_id

    async def status(self) -> ExecutionInfo:
        """Return whether the execution is `queued`, `running` or `done`, and its success.

        Raises:
            NotFound: the broker does not keep it any more.
            ConnectionLost: the broker could not be reached for a minute.
        """
        return await _info(self._address, self._timeout, self._execution_id)

    async def code(self) -> str:
        """Return the code of the cell. Raises as `status`."""
        return str((await self._details())["code"])

    async def _details(self) -> dict[str, Any]:
        path = _path(self._execution_id)
        found: dict[str, Any] = await _persistent(
            lambda: call(self._address, "GET", path, self._timeout)
        )
        return found

    async def events(self, after: int = 0) -> AsyncGenerator[events.Event, None]:
        """Yield the events from the beginning, then as they come, up to the `Result`.

        If the connection is lost, it goes on behind the last event.

        Args:
            after: the `seq` of the last event that is known; 0 for all events.

        Raises:
            as `status`.
        """
        retry = _Retry()
        while True:
            try:
                async with aclosing(self._requests.events(self._execution_id, after)) as stream:
                    async for event in stream:
                        retry, after = _Retry(), event.seq
                        yield event
                return
            except (ConnectionFailed, ConnectionLost, Unavailable) as exc:
                await retry.pause(exc)
            if retry.count > 1 and (result := await self._result_before(after)) is not None:
                yield result
                return

    async def _result_before(self, seq: int) -> Result | None:
        """Return the result of an execution that ended although it has no events behind this one.

        It lacks events that were seen: the disk was full when the broker was killed.
        """
        answer = (await self._details())["result"]
        result = None if answer is None else msgspec.convert(answer, Result)
        return result if result is not None and result.seq <= seq else None

    async def result(self, timeout: float | None = None) -> ExecutionResult:
        """Wait for the end of the execution, and return its result with all output.

        If the broker ended while it ran and could not take it over, `error_detail.cause` is
        `sandbox_lost`.

        Args:
            timeout: seconds to wait; None for as long as it takes. The execution goes on after it.

        Raises:
            TimeoutError: it has not ended in time.
            as `status`.
        """
        async with asyncio.timeout(timeout):
            return await collect(self.events(), {})

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the cell, or take it out of the queue. Does nothing if it has ended.

        Raises:
            as `status`.
        """
        path = f"{_path(self._execution_id)}/interrupt"
        await _persistent(lambda: call(self._address, "POST", path, self._timeout))


async def submit(
    address: Address,
    timeout: float,
    request: ExecutionRequest,
    session_path: str | None,
    opening_timeout: float,
) -> ExecutionHandle:
    """Submit a cell, and return its handle when the broker has stored it. It runs at most once.

    Args:
        timeout, opening_timeout: seconds for an answer of the broker, and if it opens a sandbox first.
        session_path: of the session; None for a separate sandbox.
    """
    request.execution_id = execution_id = request.execution_id or uuid4().hex
    data = encode(request)
    try:
        decode_as(data, ExecutionRequest)
    except ProtocolError as exc:
        raise BadRequest(str(exc)) from exc
    # Without a session it is the key that makes a second request the same one.
    key = None if session_path is not None else {"Idempotency-Key": execution_id}
    wait = timeout if session_path is not None else opening_timeout
    path = f"{session_path or _API}/executions"
    tries = 0

    async def post() -> ExecutionInfo:
        nonlocal tries
        tries += 1
        try:
            return msgspec.convert(
                await call(address, "POST", path, wait, data, key), ExecutionInfo
            )
        except (NotFound, SessionGone) as gone:
            if tries == 1:
                raise
            # The session has ended meanwhile; an earlier try may have arrived.
            try:
                answer = await call(address, "GET", _path(execution_id), timeout)
            except NotFound:
                raise gone from None
            return msgspec.convert(answer, ExecutionInfo)

    info = await _persistent(post, busy=False)
    return ExecutionHandle(address, timeout, execution_id, info.session_id)


async def attach(address: Address, timeout: float, execution_id: str) -> ExecutionHandle:
    """Return the handle of an execution. Raises NotFound, ConnectionLost."""
    info = await _info(address, timeout, execution_id)
    return ExecutionHandle(address, timeout, execution_id, info.session_id)


async def _info(address: Address, timeout: float, execution_id: str) -> ExecutionInfo:
    path = _path(execution_id)
    answer = await _persistent(lambda: call(address, "GET", path, timeout))
    return msgspec.convert(answer, ExecutionInfo)


async def _persistent(ask: Callable[[], Awaitable[T]], *, busy: bool = True) -> T:
    """Ask until there is an answer.

    Args:
        busy: also if the broker answers that it is busy.
    """
    retry = _Retry()
    while True:
        try:
            return await ask()
        except (ConnectionFailed, ConnectionLost) as exc:
            await retry.pause(exc)
        except Unavailable as exc:
            if not busy:
                raise
            await retry.pause(exc)


class _Retry:
    """Pauses between tries, for a bounded time. `count` is how many there were."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PATIENCE
        self._delay = _FIRST_DELAY
        self.count = 0

    async def pause(self, reason: Exception) -> None:
        """Wait before the next try. Raises ConnectionLost if there is none."""
        if time.monotonic() + self._delay > self._until:
            raise ConnectionLost(
                f"the broker did not answer for {PATIENCE:g} s ({reason}); the execution goes on: "
                "ask again later, with `attach_execution`"
            ) from reason
        self.count += 1
        await asyncio.sleep(self._delay)
        self._delay = min(2 * self._delay, _LONGEST_DELAY)


async def _api() -> str:
    return _API


def _path(execution_id: str) -> str:
    return f"{_API}/executions/{quote(execution_id, safe='')}"
