"""The asyncio client: a broker, and the sessions that it opens.

    async with kernelbroker.connect() as broker:
        async with broker.session() as session:
            async for event in session.stream("for i in range(3): print(i)"):
                ...
            result = await session.run("df.describe()", result_var="df")

Any await here may be cancelled; nothing stays behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Unpack, cast
from urllib.parse import quote

import msgspec

from . import discovery, rest
from .options import ExecutionOptions, RunOptions
from .protocol import events
from .protocol.codec import encode
from .protocol.findings import Assessment, Language
from .protocol.messages import AssessmentRequest, Open, WorkspaceInfo
from .results import ExecutionResult
from .session import Session


def connect(url: str | None = None, token: str | None = None, timeout: float = 30.0) -> Broker:
    """The broker at `url`, or the one that is found (see `discovery.py`).

    Nothing is sent before the first call that needs an answer; `async with` closes what was opened.

    Args:
        url: `http://host:port` or `https://…`; default `KERNELBROKER_URL`, then the runtime file.
        token: default `KERNELBROKER_TOKEN`, then the runtime file.
        timeout: seconds to wait for a connection or an answer of the broker's; not for cells.

    Raises:
        ConnectionFailed: the URL is none, or the runtime file is not to be trusted.
    """
    return Broker(discovery.find(url, token), timeout)


class Broker:
    """A broker, as `connect` gives it."""

    def __init__(self, address: discovery.Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._sessions: set[Session] = set()

    @property
    def url(self) -> str:
        return self._address.url

    def session(
        self,
        session_id: str | None = None,
        *,
        template: str = "default",
        workspace: str | None = None,
        workspace_retention: float | None = None,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        cwd: str | None = None,
        metadata: dict[str, Any] | None = None,
        idle_timeout: float | None = None,
        max_lifetime: float | None = None,
        keep: bool = False,
    ) -> Session:
        """A session, opened by `async with` (or `open`, or the first cell) and closed at its end.

        Args:
            session_id: open this session again if it is there, else one under this id.
            template: the sandbox recipe.
            workspace: take up the files of this workspace, and leave them there for the next session
                that names it; the session's id is its name if not given.
            workspace_retention: seconds to keep the files after the session, if less than the
                broker does.
            env: environment variables of the kernel.
            secrets: the same; the broker masks their values in all output.
            cwd: working directory, relative to `/data`.
            metadata: notes of your own, kept with the session.
            idle_timeout, max_lifetime: seconds after which the broker closes the session.
            keep: at the end only drop the connection; the session lives on under its id.
        """
        request = Open(
            session_id=session_id or None,
            template=template,
            workspace=workspace,
            workspace_retention=workspace_retention,
            env=env or {},
            secrets=secrets or {},
            cwd=cwd,
            metadata=metadata or {},
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
        )
        return Session(
            self._address, request, keep=keep, timeout=self._timeout, open_sessions=self._sessions
        )

    async def run(self, code: str, **options: Unpack[RunOptions]) -> ExecutionResult:
        """Run one cell in a sandbox of its own, gone afterwards. See `Session.run`."""
        async with self.session(workspace_retention=0) as session:
            return await session.run(code, **options)

    async def stream(
        self, code: str, **options: Unpack[ExecutionOptions]
    ) -> AsyncGenerator[events.Event, None]:
        """Stream one cell from a sandbox of its own, gone afterwards. See `Session.stream`."""
        async with (
            self.session(workspace_retention=0) as session,
            aclosing(session.stream(code, **options)) as stream,
        ):
            async for event in stream:
                yield event

    async def health(self) -> dict[str, Any]:
        """What `GET /health` tells; needs no token."""
        return await self._get("/health")

    async def pool_status(self) -> dict[str, Any]:
        """How many sandboxes the pool has: `total_containers`, `idle_containers` and so on."""
        return await self._get("/api/v1/pool/status")

    async def assess(self, code: str, language: Language = "python") -> Assessment:
        """Have the broker judge code, without running it. `kernelbroker.assess` does it here."""
        body = encode(AssessmentRequest(code=code, language=language))
        answer = await rest.call(self._address, "POST", "/api/v1/assess", self._timeout, body)
        return msgspec.convert(answer, Assessment)

    async def workspaces(self) -> list[WorkspaceInfo]:
        """The workspaces that the broker has, the one used last at the end."""
        answer = await self._get("/api/v1/workspaces")
        return msgspec.convert(answer["workspaces"], list[WorkspaceInfo])

    async def delete_workspace(self, name: str) -> None:
        """Remove a workspace and its files.

        Raises:
            NotFound: there is none of this name.
            Conflict: a session has it.
        """
        path = f"/api/v1/workspaces/{quote(name, safe='')}"
        await rest.call(self._address, "DELETE", path, self._timeout)

    async def close(self) -> None:
        """Close all sessions that were opened here and are still open."""
        await asyncio.gather(*(session.close() for session in self._sessions))

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _get(self, path: str) -> dict[str, Any]:
        return cast(dict[str, Any], await rest.call(self._address, "GET", path, self._timeout))
