"""The HTTP requests of one session: those that are large or slow, or not part of its events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast
from urllib.parse import quote

import msgspec

from . import from_arrow
from .discovery import Address
from .file_transfer import Progress, download
from .http_request import MAX_BODY, HTTPRequest, call
from .protocol import events
from .protocol.codec import decode_as, decode_incoming, decode_json, encode
from .protocol.errors import ConnectionFailed, ConnectionLost, ProtocolError, Unavailable
from .protocol.messages import (
    CheckpointInfo,
    CheckpointRequest,
    ExecutionInfo,
    ExecutionList,
    ForkOptions,
    InstallRequest,
    SessionInfo,
    SessionList,
    VariableList,
)

T = TypeVar("T")

ExportFormat: TypeAlias = Literal["csv", "parquet", "arrow", "json"]

_SUFFIXES: dict[str, ExportFormat] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".json": "json",
}
MAX_NOTEBOOK = 256 * 2**20
"""Bytes of a notebook. The broker sends less."""
_INSTALL_TIMEOUT = 900.0
"""Seconds that an installation may wait for its turn, or be silent."""
_CHECKPOINT_TIMEOUT = 900.0
"""Seconds that saving a session may take, with its turn."""
_SILENCE_TIMEOUT = 3600.0
"""Seconds for which a running execution may be silent."""
_EVENTS_TIMEOUT = 60.0
"""Seconds of silence after which a stream of events is lost: the broker sends a sign of life before."""
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
_NO_CONTENT = 204
_TURN_TIMEOUT = 30.0
"""Seconds for which the broker lets a request wait for the session's cells."""


class SessionRequests:
    """Requests about one session.

    Args:
        timeout: seconds to wait for an answer.
        opened: opens the session if needed, and returns its path at the broker.
    """

    def __init__(
        self, address: Address, timeout: float, opened: Callable[[], Awaitable[str]]
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._opened = opened

    async def variables(self) -> list[events.Variable]:
        body = await self._read("variables", self._timeout + _TURN_TIMEOUT)
        return self._decode(body, VariableList).variables

    async def executions(self) -> list[ExecutionInfo]:
        return self._decode(await self._read("executions", self._timeout), ExecutionList).executions

    async def contexts(self) -> list[SessionInfo]:
        return self._decode(await self._read("contexts", self._timeout), SessionList).sessions

    async def update(self, changes: dict[str, Any]) -> SessionInfo:
        answer = await call(
            self._address, "PATCH", await self._opened(), self._timeout, encode(changes)
        )
        return msgspec.convert(answer, SessionInfo)

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointInfo:
        return msgspec.convert(await self._post("checkpoint", request), CheckpointInfo)

    async def fork(self, options: ForkOptions) -> SessionInfo:
        return msgspec.convert(await self._post("fork", options), SessionInfo)

    async def table(self, name: str, format: str, lossy: bool, max_bytes: int) -> Any:
        await asyncio.to_thread(from_arrow.expect, format)
        path = f"variables/{quote(name, safe='')}{'?lossy=true' if lossy else ''}"
        async with self._request("GET", path, self._timeout + _TURN_TIMEOUT) as request:
            return await from_arrow.receive(request, format, max_bytes)

    async def export(
        self,
        name: str,
        local: str | os.PathLike[str],
        format: ExportFormat | None,
        progress: Progress | None,
    ) -> None:
        format = format or _SUFFIXES.get(Path(local).suffix.lower())
        if format is None:
            raise ValueError(f"the format of {str(local)!r} is unknown: give `format`")
        path = f"variables/{quote(name, safe='')}?format={format}"

        request = self._request("GET", path, self._timeout + _TURN_TIMEOUT)
        await download(request, local, progress)

    async def install(self, installation: InstallRequest) -> AsyncGenerator[events.Event, None]:
        """The events of an installation, up to its result."""
        body = encode(installation)
        async with self._request("POST", "packages", _INSTALL_TIMEOUT) as request:
            await request.begin(
                {
                    "Content-Length": str(len(body)),
                    "Content-Type": "application/json",
                    "Accept": "application/x-ndjson",
                }
            )
            await request.send(body)
            await request.answer()
            async for event in _events(request):
                yield event
                if isinstance(event, events.Result):
                    return
        raise ConnectionLost(
            "the connection broke off before the installation had ended: see `executions` for its outcome"
        )

    async def events(self, execution_id: str, after: int) -> AsyncGenerator[events.Event, None]:
        """The events of an execution whose `seq` is greater than `after`, up to its result."""
        path = f"executions/{quote(execution_id, safe='')}/events?after={after}"
        async with self._request("GET", path, _SILENCE_TIMEOUT) as request:
            await request.begin({"Accept": "application/x-ndjson"})
            await request.answer()
            async for event in _events(request):
                yield event
                if isinstance(event, events.Result):
                    return
        raise ConnectionLost(
            "the connection broke off before the execution had ended: ask for the rest with `after`"
        )

    async def session_events(self, after: int) -> AsyncGenerator[dict[str, Any], None]:
        """The session's events after a `seq`, until it ends. A lost connection is made again."""
        attempts = 0
        while True:
            try:
                async with self._request(
                    "GET", f"events?after={after}", _EVENTS_TIMEOUT
                ) as request:
                    await request.begin({"Accept": "application/x-ndjson"})
                    if await request.answer() == _NO_CONTENT:
                        return
                    line = b""
                    while piece := await request.read_available():
                        attempts = 0
                        *lines, line = (line + piece).split(b"\n")
                        for text in filter(None, lines):  # an empty line is a sign of life
                            event = decode_json(text, dict[str, Any])
                            yield event
                            after = event["seq"]
            except (ConnectionLost, ConnectionFailed, Unavailable):
                attempts += 1
                if attempts > len(_PAUSES):
                    raise
                await asyncio.sleep(_PAUSES[attempts - 1])

    async def post_event(self, event: dict[str, Any]) -> dict[str, Any]:
        path = f"{await self._opened()}/events"
        answer = await call(self._address, "POST", path, self._timeout, encode(event))
        return cast(dict[str, Any], answer)

    async def _post(self, path: str, body: msgspec.Struct) -> Any:
        where = f"{await self._opened()}/{path}"
        return await call(self._address, "POST", where, _CHECKPOINT_TIMEOUT, encode(body))

    async def notebook(self) -> dict[str, Any]:
        return self._decode(
            await self._read("notebook", self._timeout, MAX_NOTEBOOK), dict[str, Any]
        )

    async def _read(self, path: str, timeout: float, limit: int = MAX_BODY) -> bytes:
        async with self._request("GET", path, timeout) as request:
            await request.begin()
            await request.answer()
            return await request.read_all(limit)

    def _decode(self, body: bytes, type_: type[T]) -> T:
        try:
            return decode_as(body, type_)
        except ProtocolError as exc:
            raise self._address.unreachable(exc) from exc

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, timeout: float
    ) -> AsyncGenerator[HTTPRequest, None]:
        where = f"{await self._opened()}/{path}"
        async with HTTPRequest(self._address, method, where, timeout) as request:
            yield request


async def _events(request: HTTPRequest) -> AsyncGenerator[events.Event, None]:
    """The events of an answer in lines of JSON."""
    line = b""
    while piece := await request.read_available():
        *lines, line = (line + piece).split(b"\n")
        for text in lines:
            event = decode_incoming(text)
            if isinstance(event, events.Event):
                yield event
