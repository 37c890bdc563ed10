"""The client without `await`: the same names, the same meaning, over the same core.

    with kernelbroker.sync.connect() as broker:
        with broker.session() as session:
            for event in session.stream("print(1)"):
                ...
            result = session.run("x = 2", result_var="x")

Each broker has an event loop in a thread of its own (see `portal.py`), so this works in plain scripts,
in threads, and in notebooks, whose own loop is running. Callbacks run in the calling thread, those that
are async in the broker's. Ctrl-C ends the wait; the cell runs on, as it does when an `await` is
cancelled, unless `on_disconnect="interrupt"`. What each call does and raises stands in `aio.py` and
`session.py`.
"""

from __future__ import annotations

from collections.abc import Generator
from os import PathLike
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from . import aio, files
from .options import Callback, ExecutionOptions, RunOptions
from .portal import Portal, in_caller
from .protocol import events
from .protocol.findings import Assessment, Language
from .protocol.messages import SessionInfo, WorkspaceInfo
from .results import ExecutionResult
from .session import Session as AsyncSession

if TYPE_CHECKING:
    import pandas


def connect(url: str | None = None, token: str | None = None, timeout: float = 30.0) -> Broker:
    """See `aio.connect`. The caller's next duty is `with`, or `close`: there is a thread to end."""
    return Broker(aio.connect(url, token, timeout), Portal())


class Broker:
    """See `aio.Broker`."""

    def __init__(self, broker: aio.Broker, portal: Portal) -> None:
        self._aio = broker
        self._portal = portal

    @property
    def url(self) -> str:
        return self._aio.url

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
        session = self._aio.session(
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
            keep=keep,
        )
        return Session(session, self._portal)

    def run(self, code: str, **options: Unpack[RunOptions]) -> ExecutionResult:
        return self._portal.call(self._aio.run(code, **_relayed(options)))

    def stream(
        self, code: str, **options: Unpack[ExecutionOptions]
    ) -> Generator[events.Event, None, None]:
        return self._portal.iterate(self._aio.stream(code, **options))

    def health(self) -> dict[str, Any]:
        return self._portal.call(self._aio.health())

    def pool_status(self) -> dict[str, Any]:
        return self._portal.call(self._aio.pool_status())

    def assess(self, code: str, language: Language = "python") -> Assessment:
        return self._portal.call(self._aio.assess(code, language))

    def workspaces(self) -> list[WorkspaceInfo]:
        return self._portal.call(self._aio.workspaces())

    def delete_workspace(self, name: str) -> None:
        self._portal.call(self._aio.delete_workspace(name))

    def close(self) -> None:
        """Close all open sessions, and end the thread; what other threads wait for is cancelled."""
        self._portal.close(self._aio.close())

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Session:
    """See `session.Session`."""

    def __init__(self, session: AsyncSession, portal: Portal) -> None:
        self._aio = session
        self._portal = portal

    @property
    def session_id(self) -> str:
        return self._aio.session_id

    @property
    def files(self) -> Files:
        return Files(self._aio.files, self._portal)

    @property
    def info(self) -> SessionInfo | None:
        return self._aio.info

    def open(self) -> Session:
        self._portal.call(self._aio.open())
        return self

    def run(self, code: str, **options: Unpack[RunOptions]) -> ExecutionResult:
        return self._portal.call(self._aio.run(code, **_relayed(options)))

    def stream(
        self, code: str, **options: Unpack[ExecutionOptions]
    ) -> Generator[events.Event, None, None]:
        return self._portal.iterate(self._aio.stream(code, **options))

    def stdin(self, execution_id: str, value: str) -> None:
        self._portal.call(self._aio.stdin(execution_id, value))

    def variables(self) -> list[events.Variable]:
        return self._portal.call(self._aio.variables())

    @overload
    def table(self, name: str, as_: Literal["pandas"] = "pandas") -> pandas.DataFrame: ...
    @overload
    def table(self, name: str, as_: Literal["arrow", "polars"]) -> Any: ...
    def table(self, name: str, as_: Literal["pandas", "arrow", "polars"] = "pandas") -> Any:
        return self._portal.call(self._aio.table(name, as_))

    def install(
        self,
        *packages: str,
        timeout: float | None = None,
        confirm: str | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
    ) -> ExecutionResult:
        return self._portal.call(
            self._aio.install(
                *packages,
                timeout=timeout,
                confirm=confirm,
                on_stdout=on_stdout and in_caller(on_stdout),
                on_stderr=on_stderr and in_caller(on_stderr),
            )
        )

    def interrupt(self) -> None:
        self._portal.call(self._aio.interrupt())

    def restart(self) -> None:
        self._portal.call(self._aio.restart())

    def close(self) -> None:
        self._portal.call(self._aio.close())

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Files:
    """See `files.Files`. Files that are given to `write` are read in a thread."""

    def __init__(self, files: files.Files, portal: Portal) -> None:
        self._aio = files
        self._portal = portal

    def read(self, path: str) -> bytes:
        return self._portal.call(self._aio.read(path))

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return self._portal.call(self._aio.read_text(path, encoding))

    def stream(self, path: str) -> Generator[bytes, None, None]:
        return self._portal.iterate(self._aio.stream(path))

    def write(self, path: str, data: bytes | str | IO[bytes]) -> None:
        self._portal.call(self._aio.write(path, data))

    def upload(
        self,
        local: str | PathLike[str],
        remote: str | None = None,
        progress: files.Progress | None = None,
    ) -> None:
        self._portal.call(self._aio.upload(local, remote, progress and in_caller(progress)))

    def download(
        self, remote: str, local: str | PathLike[str], progress: files.Progress | None = None
    ) -> None:
        self._portal.call(self._aio.download(remote, local, progress and in_caller(progress)))

    def list(self, path: str = ".", recursive: bool = False) -> files.Listing:
        return self._portal.call(self._aio.list(path, recursive))

    def exists(self, path: str) -> bool:
        return self._portal.call(self._aio.exists(path))

    def delete(self, path: str, recursive: bool = False) -> None:
        self._portal.call(self._aio.delete(path, recursive))

    def move(self, source: str, target: str) -> None:
        self._portal.call(self._aio.move(source, target))

    def mkdir(self, path: str) -> None:
        self._portal.call(self._aio.mkdir(path))


def _relayed(options: RunOptions) -> RunOptions:
    """The options, with callbacks that run in the calling thread."""
    relayed = {
        name: in_caller(value) if callable(value) else value for name, value in options.items()
    }
    return cast(RunOptions, relayed)
