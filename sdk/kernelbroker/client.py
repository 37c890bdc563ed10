"""The asyncio client: a broker, and the sessions that it opens.

    async with kernelbroker.connect() as broker:
        async with broker.session() as session:
            async for event in session.stream("for i in range(3): print(i)"):
                ...
            result = await session.run("df.describe()", result_var="df")

Any await here may be cancelled; no task or connection is left behind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from ssl import SSLContext
from types import TracebackType
from typing import Any, TypeAlias, cast
from urllib.parse import quote

import msgspec

from . import discovery
from .callbacks import DisplayCallback, ImageCallback, TextCallback, collect
from .execution_handle import ExecutionHandle, attach, submit
from .http_request import call
from .protocol import events
from .protocol.codec import encode
from .protocol.findings import Assessment, Language
from .protocol.messages import (
    AssessmentRequest,
    CheckpointInfo,
    CheckpointList,
    CheckpointSummary,
    ExecutionInfo,
    ExecutionRequest,
    OnError,
    Open,
    ProjectOptions,
    SandboxLimits,
    SessionInfo,
    SessionList,
    WorkspaceInfo,
    WorkspaceLayout,
)
from .protocol.operations import CodeOperationResponse
from .results import ExecutionResult
from .session import OnDisconnect, Session
from .session_follower import follow
from .session_requests import SessionRequests
from .websocket import RECONNECT_TIMEOUT, Timeouts

Project: TypeAlias = str | ProjectOptions | os.PathLike[str]

_BROWSER_TIMEOUT = 360.0
"""More than an action of a browser may take."""
OPEN_TIMEOUT = 120.0
"""Longer than the broker waits for a free sandbox before it refuses (30 s by default)."""


def connect(
    url: str | None = None,
    token: str | None = None,
    timeout: float = 30.0,
    *,
    open_timeout: float = OPEN_TIMEOUT,
    reconnect_timeout: float = RECONNECT_TIMEOUT,
    retries: int = 0,
    ssl: SSLContext | None = None,
) -> Broker:
    """Return a client of the broker at `url`, or of the broker that this user runs on this machine.

    Nothing is sent before the first call that needs an answer. `async with` closes all sessions at its
    end. Proxies that the environment names (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`) are used, but none for
    an address of this machine.

    Args:
        url: `http://host:port` or `https://...`; default `KERNELBROKER_URL`, then the runtime file.
        token: default `KERNELBROKER_TOKEN`, then the runtime file.
        timeout: seconds to wait for a connection or an answer; not for cells.
        open_timeout: seconds to wait for a session to open or restart. The broker first waits for a
            free sandbox (its `acquire_timeout`), and then refuses with `Unavailable`.
        reconnect_timeout: seconds to wait for a broker that is away, such as while it restarts, when a
            session has lost its connection; then the session ends with `ConnectionLost`.
        retries: how often to send a request again, after growing pauses: one that has reached no broker,
            and one that only reads, replaces or deletes, and was refused as `Unavailable`.
        ssl: TLS settings for an `https` URL; by default Python's own.

    Raises:
        ConnectionFailed: the URL is invalid, or other users may have written the runtime file.
    """
    address = discovery.find(url, token, ssl=ssl, retries=retries)
    return Broker(address, Timeouts(timeout, open_timeout, reconnect_timeout))


class Broker:
    """A client of a broker, made by `connect`."""

    def __init__(self, address: discovery.Address, timeouts: Timeouts) -> None:
        self._address = address
        self._timeouts = timeouts
        self._sessions: set[Session] = set()

    def __repr__(self) -> str:
        return f"<kernelbroker.Broker at {self.url}>"

    @property
    def url(self) -> str:
        """The broker's address."""
        return self._address.url

    def session(
        self,
        session_id: str | None = None,
        *,
        template: str = "default",
        workspace: str | None = None,
        workspace_retention: float | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idle_timeout: float | None = None,
        max_lifetime: float | None = None,
        from_checkpoint: str | None = None,
        layout: WorkspaceLayout | None = None,
        limits: SandboxLimits | None = None,
        project: Project | None = None,
        language: str = "python",
        on_error: OnError | None = None,
        keep: bool | None = None,
    ) -> Session:
        """Return a session, which `async with`, `open` or the first cell opens, and `async with` closes.

        Args:
            session_id: use the session with this id if it is open, else open a new one with this id.
            template: the name of the template, which selects backend, image, limits and network.
            workspace: use the files of this workspace, and keep them there for later sessions; by
                default the workspace is named after the session.
            workspace_retention: seconds to keep the files after the session, if less than the
                broker's setting.
            env: environment variables of the kernel.
            secrets: environment variables whose values the broker masks in all output.
            cwd: working directory, relative to `/data`.
            metadata: your own notes, kept with the session.
            idle_timeout: seconds without an execution after which the broker closes the session.
            max_lifetime: seconds after which the broker closes it in any case.
            from_checkpoint: begin with the variables and files of this checkpoint (`Session.checkpoint`).
                `info.not_restored` lists what could not be loaded.
            layout: directories and files that the workspace gets where they are missing: `agent` or
                `analysis`.
            limits: limits of memory and output that are lower than those of the template.
            project: what `session.code` works on, at /workspace/project: a directory of the broker's host
                ("/srv/shop"), the URL of a git repository, `ProjectOptions` with more about one of them,
                or a `pathlib.Path` of this machine, which `open` and `async with` upload.
            language, on_error: those of cells that name none; by default `python` and `rollback`.
            keep: `close` and `async with` only close the connection; the session stays open. By default
                they close a session that this client has opened, and keep one that was there.
        """
        request = Open(
            session_id=session_id or None,
            template=template,
            workspace=workspace,
            workspace_retention=workspace_retention,
            env=dict(env or {}),
            secrets=dict(secrets or {}),
            cwd=cwd,
            metadata=dict(metadata or {}),
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
            from_checkpoint=from_checkpoint,
            layout=layout,
            limits=limits or SandboxLimits(),
            project=None if isinstance(project, os.PathLike) else project,
            language=language,
            on_error=on_error,
        )
        return Session(
            self._address,
            request,
            keep=keep,
            upload=project if isinstance(project, os.PathLike) else None,
            timeouts=self._timeouts,
            open_sessions=self._sessions,
        )

    async def attach(self, session_id: str, *, keep: bool = True) -> Session:
        """Connect to an open session, and never open a new one.

            async with await broker.attach("mine") as session:
                ...

        Args:
            keep: `close` and `async with` only close the connection; the session stays open.

        Raises:
            NotFound: no session has this id.
            SessionGone: the session is closed.
        """
        answer = await self._get(f"/api/v1/sessions/{quote(session_id, safe='')}")
        info = msgspec.convert(answer, SessionInfo)
        session = Session(
            self._address,
            Open(session_id=session_id, template=info.template),
            keep=keep,
            timeouts=self._timeouts,
            open_sessions=self._sessions,
            known=info,
        )
        return await session.open()

    async def sessions(self) -> list[SessionInfo]:
        """Return the open sessions of the token's tenant."""
        answer = await self._get("/api/v1/sessions")
        return msgspec.convert(answer, SessionList).sessions

    async def close_session(self, session_id: str) -> None:
        """Close a session by its id, whichever client opened it.

        Raises:
            NotFound: no session has this id.
            SessionGone: the session is closed.
        """
        path = f"/api/v1/sessions/{quote(session_id, safe='')}"
        await call(self._address, "DELETE", path, self._timeouts.answer)

    async def executions(self, session_id: str) -> list[ExecutionInfo]:
        """Return the executions of a session, oldest first, also if it has ended.

        The broker keeps them for a time after the session's end (its `result_retention`), also if it is
        restarted or killed.

        Raises:
            NotFound, SessionGone: the broker keeps none of this session.
        """
        return await self._requests(session_id).executions()

    async def notebook(self, session_id: str) -> dict[str, Any]:
        """Return a session as a notebook, also if it has ended. See `Session.notebook`.

        Raises:
            NotFound, SessionGone: the broker keeps no executions of this session.
            TooLarge: the executions take more than 64 MiB.
        """
        return await self._requests(session_id).notebook()

    async def follow(self, session_id: str) -> AsyncGenerator[events.Event, None]:
        """Yield the events of all executions of an open session, from any client, until it ends.

        Executions that run or wait are yielded from their beginning. If the connection is lost, it is made
        again, and nothing is left out; the events of several executions may then be mixed.

        Raises:
            NotFound: no session has this id.
            SessionGone: the session is closed.
            ConnectionLost: the broker could not be reached again.
        """
        answer = await self._get(f"/api/v1/sessions/{quote(session_id, safe='')}")
        info = msgspec.convert(answer, SessionInfo)
        following = follow(self._address, info, self._timeouts, self._requests(session_id))
        async with aclosing(following):
            async for event in following:
                yield event

    async def session_events(
        self, session_id: str, after: int = 0
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a session's events for a front end, also of one that has ended. See `Session.events`."""
        async with aclosing(self._requests(session_id).session_events(after)) as stream:
            async for event in stream:
                yield event

    async def result(self, session_id: str, execution_id: str) -> ExecutionResult:
        """Return the result of an execution with its output; wait for it if it has not ended.

        It need not be an execution of this client, and its session may have ended: see `executions`. If
        the broker ended while it ran, `error_detail.cause` is `sandbox_lost`.

        Raises:
            NotFound, SessionGone: the broker does not keep this execution.
            ConnectionLost: the connection broke off. Call it again.
        """
        return await collect(self.replay(session_id, execution_id), {})

    async def replay(
        self, session_id: str, execution_id: str, after: int = 0
    ) -> AsyncGenerator[events.Event, None]:
        """Yield the events of an execution from the beginning, then as they come, up to the `Result`.

        Args:
            after: the `seq` of the last event that is known; 0 for all events.

        Raises:
            as `result`.
        """
        async with aclosing(self._requests(session_id).events(execution_id, after)) as stream:
            async for event in stream:
                yield event

    async def submit(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        result_var: str | None = None,
        preview_rows: int = 10,
        confirm: str | None = None,
        execution_id: str | None = None,
        callback_url: str | None = None,
    ) -> ExecutionHandle:
        """Run a cell in a separate sandbox, and return a handle of it when the broker has stored it.

        The sandbox is removed when the cell has ended. See `Session.submit`.
        """
        request = ExecutionRequest(
            code=code,
            execution_id=execution_id,
            language=language,
            timeout=timeout,
            cwd=cwd,
            env=dict(env or {}),
            secrets=dict(secrets or {}),
            result_var=result_var,
            preview_rows=preview_rows,
            confirm=confirm,
            callback_url=callback_url,
        )
        timeouts = self._timeouts
        return await submit(self._address, timeouts.answer, request, None, timeouts.opening)

    async def attach_execution(self, execution_id: str) -> ExecutionHandle:
        """Return a handle of an execution that runs, waits or has ended, of any session of the tenant.

        If an id was used in several sessions, it is the latest execution.

        Raises:
            NotFound: no execution has this id, or it is not kept any more.
        """
        return await attach(self._address, self._timeouts.answer, execution_id)

    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        result_var: str | None = None,
        preview_rows: int = 10,
        on_error: OnError = "rollback",
        on_disconnect: OnDisconnect = "continue",
        confirm: str | None = None,
        allow_stdin: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        on_image: ImageCallback | None = None,
        on_display: DisplayCallback | None = None,
        on_input: TextCallback | None = None,
    ) -> ExecutionResult:
        """Run one cell in a separate sandbox, which is removed afterwards. See `Session.run`."""
        async with self.session(workspace_retention=0) as session:
            return await session.run(
                code,
                language=language,
                timeout=timeout,
                cwd=cwd,
                env=env,
                secrets=secrets,
                result_var=result_var,
                preview_rows=preview_rows,
                on_error=on_error,
                on_disconnect=on_disconnect,
                confirm=confirm,
                allow_stdin=allow_stdin,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_image=on_image,
                on_display=on_display,
                on_input=on_input,
            )

    async def stream(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        result_var: str | None = None,
        preview_rows: int = 10,
        on_error: OnError = "rollback",
        on_disconnect: OnDisconnect = "continue",
        confirm: str | None = None,
    ) -> AsyncGenerator[events.Event, None]:
        """Stream the events of one cell in a separate sandbox, which is removed afterwards.

        The arguments are those of `Session.stream`. `input()` is an error in the cell.
        """
        async with self.session(workspace_retention=0) as session:
            stream = session.stream(
                code,
                language=language,
                timeout=timeout,
                cwd=cwd,
                env=env,
                secrets=secrets,
                result_var=result_var,
                preview_rows=preview_rows,
                on_error=on_error,
                on_disconnect=on_disconnect,
                confirm=confirm,
            )
            async with aclosing(stream):
                async for event in stream:
                    yield event

    async def health(self) -> dict[str, Any]:
        """Return the answer of `GET /health`, which needs no token."""
        return await self._get("/health")

    async def pool_status(self) -> dict[str, Any]:
        """Return the numbers of sandboxes in the pools: `total_containers`, `idle_containers` and so on."""
        return await self._get("/api/v1/pool/status")

    async def assess(
        self, code: str, language: str = "python", params: Mapping[str, Any] | None = None
    ) -> Assessment:
        """Assess code in the broker, without running it. `kernelbroker.assess` needs no broker.

        Args:
            code: the code, or the action of a browser.
            language: `python`, `javascript`, `shell` or `browser`. An unknown one is `high`.
            params: the parameters of a browser's action.
        """
        asked = AssessmentRequest(code=code, language=language, params=dict(params or {}))
        body = encode(asked)
        answer = await call(self._address, "POST", "/api/v1/assess", self._timeouts.answer, body)
        return msgspec.convert(answer, Assessment)

    async def external_browser(
        self, action: str, params: Mapping[str, Any] | None = None
    ) -> CodeOperationResponse:
        """Use the browser outside of the sandboxes that the operator provides.

        Args:
            action: `navigate`, `screenshot` or `close`.
            params: `url`, `full_page` and `timeout`.

        Raises:
            NotFound: the broker has none, or it has no such action.
            RequestError: the broker refused the action.
        """
        path = f"/api/v1/browser/{quote(action, safe='')}"
        body = encode(dict(params or {}))
        answer = await call(self._address, "POST", path, _BROWSER_TIMEOUT, body)
        return msgspec.convert(answer, CodeOperationResponse)

    async def workspaces(self) -> list[WorkspaceInfo]:
        """Return the workspaces of the token's tenant, the most recently used last."""
        answer = await self._get("/api/v1/workspaces")
        return msgspec.convert(answer["workspaces"], list[WorkspaceInfo])

    async def delete_workspace(self, name: str) -> None:
        """Remove a workspace and its files.

        Raises:
            NotFound: no workspace has this name.
            Conflict: a session uses it.
        """
        path = f"/api/v1/workspaces/{quote(name, safe='')}"
        await call(self._address, "DELETE", path, self._timeouts.answer)

    async def checkpoints(self) -> list[CheckpointSummary]:
        """Return the checkpoints of the token's tenant, oldest first."""
        answer = await self._get("/api/v1/checkpoints")
        return msgspec.convert(answer, CheckpointList).checkpoints

    async def checkpoint(self, name: str) -> CheckpointInfo:
        """Return a checkpoint: what it holds, and what is missing in it. Raises NotFound."""
        answer = await self._get(f"/api/v1/checkpoints/{quote(name, safe='')}")
        return msgspec.convert(answer, CheckpointInfo)

    async def delete_checkpoint(self, name: str) -> None:
        """Delete a checkpoint. Sessions that were opened with it stay. Raises NotFound."""
        path = f"/api/v1/checkpoints/{quote(name, safe='')}"
        await call(self._address, "DELETE", path, self._timeouts.answer)

    async def close(self) -> None:
        """Close all open sessions of this client, and its idle connections."""
        await asyncio.gather(*(session.close() for session in self._sessions))
        self._address.connections.close()

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _requests(self, session_id: str) -> SessionRequests:
        """The requests of a session that need not be open."""

        async def path() -> str:
            return f"/api/v1/sessions/{quote(session_id, safe='')}"

        return SessionRequests(self._address, self._timeouts.answer, path)

    async def _get(self, path: str) -> dict[str, Any]:
        answer = await call(self._address, "GET", path, self._timeouts.answer)
        return cast(dict[str, Any], answer)
