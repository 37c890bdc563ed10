"""`SandboxClient`, without `await`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from os import PathLike
from ssl import SSLContext
from types import TracebackType

from .. import sandbox_client
from ..callbacks import DisplayCallback, ImageCallback, TextCallback
from ..client import OPEN_TIMEOUT
from ..loop_thread import LoopThread, in_caller
from ..protocol.findings import Language
from ..protocol.messages import OnError
from ..results import ExecutionResult
from ..sandbox_client import StreamChunk
from ..session import OnDisconnect


class SandboxClient:
    """See `kernelbroker.SandboxClient`. It starts a thread, which `with` or `close` ends."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        *,
        gateway_url: str | None = None,
        open_timeout: float = OPEN_TIMEOUT,
        ssl: SSLContext | None = None,
    ) -> None:
        self._async = sandbox_client.SandboxClient(
            url, token, timeout, gateway_url=gateway_url, open_timeout=open_timeout, ssl=ssl
        )
        self._loop_thread: LoopThread | None = None

    def execute(
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
        include_df_info: bool = True,
    ) -> ExecutionResult:
        return self._thread.call(
            self._async.execute(
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
                include_df_info=include_df_info,
            )
        )

    def stream_execute(
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
        include_df_info: bool = True,
    ) -> Generator[StreamChunk, None, None]:
        return self._thread.iterate(
            self._async.stream_execute(
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
                include_df_info=include_df_info,
            )
        )

    def upload(self, local: str | PathLike[str], remote: str | None = None) -> None:
        self._thread.call(self._async.upload(local, remote))

    def download(self, remote: str, local: str | PathLike[str]) -> None:
        self._thread.call(self._async.download(remote, local))

    def reset(self) -> bool:
        return self._thread.call(self._async.reset())

    def health_check(self) -> bool:
        return self._thread.call(self._async.health_check())

    def close(self) -> None:
        """Close the session, and end the thread. The client can be used again."""
        thread, self._loop_thread = self._loop_thread, None
        if thread is not None:
            thread.close(self._async.close())

    def __enter__(self) -> SandboxClient:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _thread(self) -> LoopThread:
        if self._loop_thread is None:
            self._loop_thread = LoopThread()
        return self._loop_thread
