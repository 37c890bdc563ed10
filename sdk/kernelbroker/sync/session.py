"""A session, without `await`."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import session as asynchronous
from ..callbacks import DisplayCallback, ImageCallback, TextCallback
from ..file_transfer import Progress
from ..loop_thread import LoopThread, in_caller
from ..protocol import events
from ..protocol.findings import Language
from ..protocol.messages import (
    CheckpointInfo,
    CheckpointMode,
    ExecutionInfo,
    OnError,
    SandboxLimits,
    SessionInfo,
)
from ..results import ExecutionResult
from ..session import MAX_TABLE_BYTES, OnDisconnect
from ..session_requests import ExportFormat
from .browser import Browser
from .code import Code
from .coding_agent import CodingAgent
from .execution_handle import ExecutionHandle
from .files import Files

if TYPE_CHECKING:
    import pandas


class Session:
    """See `kernelbroker.Session`."""

    def __init__(self, session: asynchronous.Session, thread: LoopThread) -> None:
        self._async = session
        self._thread = thread

    @property
    def session_id(self) -> str:
        return self._async.session_id

    @property
    def files(self) -> Files:
        return Files(self._async.files, self._thread)

    @property
    def browser(self) -> Browser:
        return Browser(self._async.browser, self._thread)

    @property
    def code(self) -> Code:
        return Code(self._async.code, self._thread)

    @property
    def coding_agent(self) -> CodingAgent:
        return CodingAgent(self._async.coding_agent, self._thread)

    @property
    def info(self) -> SessionInfo | None:
        return self._async.info

    def open(self) -> Session:
        self._thread.call(self._async.open())
        return self

    def run(
        self,
        code: str,
        *,
        language: Language | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        result_var: str | None = None,
        preview_rows: int = 10,
        on_error: OnError | None = None,
        on_disconnect: OnDisconnect = "continue",
        confirm: str | None = None,
        template: str | None = None,
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
                template=template,
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
        language: Language | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        result_var: str | None = None,
        preview_rows: int = 10,
        on_error: OnError | None = None,
        on_disconnect: OnDisconnect = "continue",
        confirm: str | None = None,
        template: str | None = None,
        allow_stdin: bool = False,
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
                template=template,
                allow_stdin=allow_stdin,
            )
        )

    def submit(
        self,
        code: str,
        *,
        language: Language | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        result_var: str | None = None,
        preview_rows: int = 10,
        on_error: OnError | None = None,
        confirm: str | None = None,
        template: str | None = None,
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
                on_error=on_error,
                confirm=confirm,
                template=template,
                execution_id=execution_id,
                callback_url=callback_url,
            )
        )
        return ExecutionHandle(handle, self._thread)

    def stdin(self, execution_id: str, value: str) -> None:
        self._thread.call(self._async.stdin(execution_id, value))

    def variables(self) -> list[events.Variable]:
        return self._thread.call(self._async.variables())

    @overload
    def table(
        self,
        name: str,
        format: Literal["pandas"] = "pandas",
        *,
        lossy: bool = False,
        max_bytes: int = MAX_TABLE_BYTES,
    ) -> pandas.DataFrame: ...
    @overload
    def table(
        self,
        name: str,
        format: Literal["arrow", "polars"],
        *,
        lossy: bool = False,
        max_bytes: int = MAX_TABLE_BYTES,
    ) -> Any: ...
    def table(
        self,
        name: str,
        format: Literal["pandas", "arrow", "polars"] = "pandas",
        *,
        lossy: bool = False,
        max_bytes: int = MAX_TABLE_BYTES,
    ) -> Any:
        return self._thread.call(self._async.table(name, format, lossy=lossy, max_bytes=max_bytes))

    def export(
        self,
        name: str,
        local: str | os.PathLike[str],
        format: ExportFormat | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._thread.call(self._async.export(name, local, format, progress and in_caller(progress)))

    def install(
        self,
        *packages: str,
        timeout: float | None = None,
        confirm: str | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
    ) -> ExecutionResult:
        return self._thread.call(
            self._async.install(
                *packages,
                timeout=timeout,
                confirm=confirm,
                on_stdout=on_stdout and in_caller(on_stdout),
                on_stderr=on_stderr and in_caller(on_stderr),
            )
        )

    def executions(self) -> list[ExecutionInfo]:
        return self._thread.call(self._async.executions())

    def events(self, after: int = 0) -> Generator[dict[str, Any], None, None]:
        return self._thread.iterate(self._async.events(after))

    def post_event(
        self, event: str | Mapping[str, Any], fields: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return self._thread.call(self._async.post_event(event, fields))

    def notebook(self) -> dict[str, Any]:
        return self._thread.call(self._async.notebook())

    def update(
        self,
        *,
        idle_timeout: float | None = None,
        max_lifetime: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
    ) -> SessionInfo:
        return self._thread.call(
            self._async.update(
                idle_timeout=idle_timeout,
                max_lifetime=max_lifetime,
                metadata=metadata,
                limits=limits,
            )
        )

    def checkpoint(self, name: str, mode: CheckpointMode = "values") -> CheckpointInfo:
        return self._thread.call(self._async.checkpoint(name, mode))

    def fork(
        self,
        session_id: str | None = None,
        *,
        mode: CheckpointMode | None = None,
        template: str | None = None,
        workspace: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idle_timeout: float | None = None,
        max_lifetime: float | None = None,
        keep: bool = False,
    ) -> Session:
        fork = self._async.fork(
            session_id,
            mode=mode,
            template=template,
            workspace=workspace,
            metadata=metadata,
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
            keep=keep,
        )
        return Session(self._thread.call(fork), self._thread)

    def context(
        self,
        context_id: str | None = None,
        *,
        language: str = "python",
        cwd: str | None = None,
        on_error: OnError | None = None,
        metadata: Mapping[str, Any] | None = None,
        keep: bool | None = None,
    ) -> Session:
        context = self._async.context(
            context_id,
            language=language,
            cwd=cwd,
            on_error=on_error,
            metadata=metadata,
            keep=keep,
        )
        return Session(self._thread.call(context), self._thread)

    def contexts(self) -> list[SessionInfo]:
        return self._thread.call(self._async.contexts())

    def interrupt(self) -> None:
        self._thread.call(self._async.interrupt())

    def restart(self) -> None:
        self._thread.call(self._async.restart())

    def close(self) -> None:
        self._thread.call(self._async.close())

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
