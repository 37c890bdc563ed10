"""A broker, without `await`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from ssl import SSLContext
from types import TracebackType
from typing import Any

from .. import client
from ..callbacks import DisplayCallback, ImageCallback, TextCallback
from ..client import OPEN_TIMEOUT, Project
from ..loop_thread import LoopThread, in_caller
from ..protocol import events
from ..protocol.findings import Assessment, Language
from ..protocol.messages import (
    CheckpointInfo,
    CheckpointSummary,
    ExecutionInfo,
    OnError,
    SandboxLimits,
    SessionInfo,
    WorkspaceInfo,
    WorkspaceLayout,
)
from ..protocol.operations import CodeOperationResponse
from ..results import ExecutionResult
from ..session import OnDisconnect
from ..websocket import RECONNECT_TIMEOUT
from .execution_handle import ExecutionHandle
from .session import Session


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
    """See `kernelbroker.connect`. It starts a thread, which `with` or `close` ends."""
    broker = client.connect(
        url,
        token,
        timeout,
        open_timeout=open_timeout,
        reconnect_timeout=reconnect_timeout,
        retries=retries,
        ssl=ssl,
    )
    return Broker(broker, LoopThread())


class Broker:
    """See `kernelbroker.Broker`."""

    def __init__(self, broker: client.Broker, thread: LoopThread) -> None:
        self._async = broker
        self._thread = thread

    @property
    def url(self) -> str:
        return self._async.url

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
        session = self._async.session(
            session_id,
            template=template,
            workspace=workspace,
            workspace_retention=workspace_retention,
            env=env,
            secrets=secrets,
            cwd=cwd,
            metadata=metadata,
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
            from_checkpoint=from_checkpoint,
            layout=layout,
            limits=limits,
            project=project,
            language=language,
            on_error=on_error,
            keep=keep,
        )
        return Session(session, self._thread)

    def attach(self, session_id: str, *, keep: bool = True) -> Session:
        session = self._thread.call(self._async.attach(session_id, keep=keep))
        return Session(session, self._thread)

    def sessions(self) -> list[SessionInfo]:
        return self._thread.call(self._async.sessions())

    def close_session(self, session_id: str) -> None:
        self._thread.call(self._async.close_session(session_id))

    def executions(self, session_id: str) -> list[ExecutionInfo]:
        return self._thread.call(self._async.executions(session_id))

    def notebook(self, session_id: str) -> dict[str, Any]:
        return self._thread.call(self._async.notebook(session_id))

    def follow(self, session_id: str) -> Generator[events.Event, None, None]:
        return self._thread.iterate(self._async.follow(session_id))

    def session_events(
        self, session_id: str, after: int = 0
    ) -> Generator[dict[str, Any], None, None]:
        return self._thread.iterate(self._async.session_events(session_id, after))

    def result(self, session_id: str, execution_id: str) -> ExecutionResult:
        return self._thread.call(self._async.result(session_id, execution_id))

    def replay(
        self, session_id: str, execution_id: str, after: int = 0
    ) -> Generator[events.Event, None, None]:
        return self._thread.iterate(self._async.replay(session_id, execution_id, after))

    def submit(
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
        handle = self._thread.call(
            self._async.submit(
                code,
                language=language,
                timeout=timeout,
                cwd=cwd,
                env=env,
                secrets=secrets,
                result_var=result_var,
                preview_rows=preview_rows,
                confirm=confirm,
                execution_id=execution_id,
                callback_url=callback_url,
            )
        )
        return ExecutionHandle(handle, self._thread)

    def attach_execution(self, execution_id: str) -> ExecutionHandle:
        handle = self._thread.call(self._async.attach_execution(execution_id))
        return ExecutionHandle(handle, self._thread)

    def run(
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
        return self._thread.call(
            self._async.run(
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
                on_stdout=on_stdout and in_caller(on_stdout),
                on_stderr=on_stderr and in_caller(on_stderr),
                on_image=on_image and in_caller(on_image),
                on_display=on_display and in_caller(on_display),
                on_input=on_input and in_caller(on_input),
            )
        )

    def stream(
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
    ) -> Generator[events.Event, None, None]:
        return self._thread.iterate(
            self._async.stream(
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
        )

    def health(self) -> dict[str, Any]:
        return self._thread.call(self._async.health())

    def pool_status(self) -> dict[str, Any]:
        return self._thread.call(self._async.pool_status())

    def assess(
        self, code: str, language: str = "python", params: Mapping[str, Any] | None = None
    ) -> Assessment:
        return self._thread.call(self._async.assess(code, language, params))

    def external_browser(
        self, action: str, params: Mapping[str, Any] | None = None
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.external_browser(action, params))

    def workspaces(self) -> list[WorkspaceInfo]:
        return self._thread.call(self._async.workspaces())

    def delete_workspace(self, name: str) -> None:
        self._thread.call(self._async.delete_workspace(name))

    def checkpoints(self) -> list[CheckpointSummary]:
        return self._thread.call(self._async.checkpoints())

    def checkpoint(self, name: str) -> CheckpointInfo:
        return self._thread.call(self._async.checkpoint(name))

    def delete_checkpoint(self, name: str) -> None:
        self._thread.call(self._async.delete_checkpoint(name))

    def close(self) -> None:
        """Close all open sessions, and end the thread. Calls that other threads wait for are cancelled."""
        self._thread.close(self._async.close())

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
