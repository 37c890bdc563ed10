"""One session: its cells, files and variables.

Cells and their events go over one WebSocket (see `connection.py`). Requests that are large or slow go
over HTTP (see `session_requests.py`). Any await here may be cancelled; no task or connection is left.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload
from uuid import uuid4

from .browser import Browser
from .callbacks import Callbacks, DisplayCallback, ImageCallback, TextCallback, collect
from .code import Code
from .coding_agent import CodingAgent
from .connection import SessionConnection
from .discovery import Address
from .execution_handle import ExecutionHandle, submit
from .file_transfer import Progress
from .files import Files
from .http_request import call
from .loop_lock import LoopLock
from .protocol import events
from .protocol.errors import Conflict, KernelBrokerError, SessionGone
from .protocol.findings import Language
from .protocol.messages import (
    CheckpointInfo,
    CheckpointMode,
    CheckpointRequest,
    Execute,
    ExecutionInfo,
    ExecutionRequest,
    ForkOptions,
    InstallRequest,
    Interrupt,
    OnError,
    Open,
    Restart,
    SandboxLimits,
    SessionInfo,
    Stdin,
)
from .results import ExecutionResult
from .session_requests import ExportFormat, SessionRequests
from .websocket import CLOSE_TIMEOUT, Timeouts

if TYPE_CHECKING:
    import pandas

OnDisconnect: TypeAlias = Literal["continue", "interrupt"]

MAX_TABLE_BYTES = 4 * 2**30
"""Memory that a table may take by default."""


class Session:
    """A leased kernel with its variables and files, made by `Broker.session`."""

    def __init__(
        self,
        address: Address,
        request: Open,
        *,
        keep: bool | None,
        timeouts: Timeouts,
        open_sessions: set[Session],
        known: SessionInfo | None = None,
        upload: os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            keep: see `Broker.session`.
            request: gets an id here if it has none, so that a session can be closed even if its opening
                was cancelled.
            open_sessions: the sessions of the broker's client that are open.
            known: attach to this session only.
            upload: a project of this machine, for a new session.
        """
        self._address = address
        self._request = request
        self._known = known
        self._is_named = request.session_id is not None
        if not self._is_named:
            request.session_id = uuid4().hex
            keep = bool(keep)
        self._keep = keep
        self._timeouts = timeouts
        self._open_sessions = open_sessions
        self._requests = SessionRequests(address, timeouts.answer, self._path)
        self._code = Code(address, timeouts.answer, self._path)
        self._connection: SessionConnection | None = None
        self._opening = LoopLock()
        self._is_closed = False
        self._has_submitted = False
        self._upload = upload

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "not open" if self._connection is None else "open"
        return f"<kernelbroker.Session {self.session_id!r}, {state}, at {self._address.url}>"

    @property
    def session_id(self) -> str:
        """The given id, else a generated one. After an opening that failed it is a new one."""
        return cast(str, self._request.session_id)

    @property
    def files(self) -> Files:
        """The files of the session's workspace."""
        return Files(self._address, self._timeouts.answer, self._path)

    @property
    def code(self) -> Code:
        """The project in the session's sandbox: read, search, edit, test, build, commit."""
        return self._code

    @property
    def browser(self) -> Browser:
        """The browser in the session's sandbox, which starts with its first action."""
        return Browser(self._code)

    @property
    def coding_agent(self) -> CodingAgent:
        """Coding agents that work on the project: `claude-code` and others, or a model of yours."""
        return CodingAgent(self._code)

    @property
    def info(self) -> SessionInfo | None:
        """The description of the session at its opening; None while it is not open."""
        return None if self._connection is None else self._connection.info

    async def open(self) -> Session:
        """Open the session if it is not open, and connect to it.

        Raises:
            Unavailable: the broker has no free sandbox; see `retry_after`.
            ConnectionFailed, ConnectionLost: the broker cannot be reached.
            SessionGone: the session has ended.
            RequestError: the broker refused for another reason.
        """
        await (await self._opened()).ready()
        upload, self._upload = self._upload, None
        if upload is not None:
            try:
                await self.code.upload(upload)
            except Conflict:  # the session was open, and has its project
                if not self._is_named:
                    raise
        return self

    async def run(
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
        """Run a cell and wait for its result. A failed cell has a result, and raises no exception.

        Callbacks get output as it comes. They may be coroutine functions; an exception in one ends `run`.

        Args:
            code: the cell.
            language: `python`, `javascript` or `shell`; that of the session if None.
            timeout: seconds until the cell is interrupted. The broker has a default and a maximum.
            cwd: working directory of this execution.
            env: environment variables of this execution.
            secrets: environment variables whose values the broker masks in all output.
            result_var: a variable to report: a table as `dataframe`, anything else as `return_value`.
            preview_rows: rows of the table to report.
            on_error: `rollback` removes the data that a failed cell bound to new names, and keeps what
                `import`, `def` and `class` statements bound; `rollback_all` removes every new name;
                `keep` removes none. That of the session if None. A cell that was interrupted or ran
                too long keeps its names, except with `rollback_all`.
            on_disconnect: `continue` lets the cell run on, `interrupt` interrupts it, when the caller
                is cancelled or the connection is lost.
            confirm: the `confirmation` of the `ConfirmationRequired` that this cell got before.
            template: run in a sandbox of this template, in a session whose template is `auto`.
            allow_stdin: `input()` in the cell is answered by `on_input`, which implies it. Without it,
                `input()` is an error in the cell.
            on_stdout, on_stderr: get text.
            on_image: gets an `Image`.
            on_display: gets a `Display`.
            on_input: gets the prompt of an `input()` in the cell, and returns the answer.

        Raises:
            ValueError: `allow_stdin` without `on_input`.
            PolicyRefused, ConfirmationRequired: the code is too risky to run, or needs a confirmation;
                see `findings`. After ConfirmationRequired, `run(code, confirm=exc.confirmation)` runs
                it once.
            RequestError: the broker refused the execution; it did not run.
            SessionGone: the session ended before the result.
            ConnectionLost: the connection was lost and could not be resumed.
        """
        if allow_stdin and on_input is None:
            raise ValueError(
                "allow_stdin needs on_input, which answers input(); "
                "with `stream` answer the input events by `stdin`"
            )
        stream = self.stream(
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
            allow_stdin=on_input is not None,
        )
        callbacks: Callbacks = {
            events.Stdout: on_stdout,
            events.Stderr: on_stderr,
            events.Image: on_image,
            events.Display: on_display,
            events.Input: on_input,
        }
        return await collect(stream, callbacks, self.stdin)

    async def stream(
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
    ) -> AsyncGenerator[events.Event, None]:
        """Run a cell and yield its events as they come; the last one is a `Result`.

        The cell is sent when the first event is requested. Several streams may be open at once; the
        broker runs their cells one after the other. If the caller stops early or is cancelled, the cell
        runs on unless `on_disconnect="interrupt"`; use `contextlib.aclosing` to stop at once.

        Args:
            allow_stdin: the caller answers `Input` events by `stdin`.

        The other arguments and the exceptions are those of `run`.
        """
        execution_id = uuid4().hex
        connection = await self._opened()
        request = Execute(
            code=code,
            execution_id=execution_id,
            language=language,
            timeout=timeout,
            cwd=cwd,
            env=dict(env or {}),
            secrets=dict(secrets or {}),
            result_var=result_var,
            preview_rows=preview_rows,
            on_error=on_error,
            on_disconnect=on_disconnect,
            confirm=confirm,
            template=template,
            allow_stdin=allow_stdin,
        )
        queue = await connection.execute(request, execution_id)
        try:
            while True:
                event = await connection.receive(queue)
                yield event
                if isinstance(event, events.Result):
                    return
        finally:
            await connection.leave(queue)

    async def submit(
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
        """Queue a cell, and return a handle of it when the broker has stored it.

        The cell needs no connection: this program may end, and another one may wait for the result with
        `Broker.attach_execution`. `close` lets the cell end before it ends the session, which does not
        expire by `idle_timeout` while a cell runs or waits in it.

        Args:
            execution_id: an id of your own, unique in the session; generated if not given.
            callback_url: a webhook that gets the result by a signed POST. The broker's operator must have
                allowed its host.

        The other arguments are those of `run`.

        Raises:
            PolicyRefused, ConfirmationRequired: as `run`.
            RequestError: the broker refused the execution; it does not run.
            SessionGone: the session has ended.
            ConnectionLost: the broker could not be reached for a minute. It may have the execution.
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
            on_error=on_error,
            confirm=confirm,
            template=template,
            callback_url=callback_url,
        )
        wait = self._timeouts.answer
        path = await self._path()
        self._has_submitted = True
        return await submit(self._address, wait, request, path, wait)

    async def stdin(self, execution_id: str, value: str) -> None:
        """Answer an `Input` event of `stream`."""
        await (await self._opened()).operate(Stdin(execution_id=execution_id, value=value))

    async def variables(self) -> list[events.Variable]:
        """Return the newest 100 variables, oldest first, when earlier cells have ended."""
        return await self._requests.variables()

    @overload
    async def table(
        self,
        name: str,
        format: Literal["pandas"] = "pandas",
        *,
        lossy: bool = False,
        max_bytes: int = MAX_TABLE_BYTES,
    ) -> pandas.DataFrame: ...
    @overload
    async def table(
        self,
        name: str,
        format: Literal["arrow", "polars"],
        *,
        lossy: bool = False,
        max_bytes: int = MAX_TABLE_BYTES,
    ) -> Any: ...
    async def table(
        self,
        name: str,
        format: Literal["pandas", "arrow", "polars"] = "pandas",
        *,
        lossy: bool = False,
        max_bytes: int = MAX_TABLE_BYTES,
    ) -> Any:
        """Fetch a whole table, when earlier cells have ended.

            frame = await session.table("df")

        A pandas DataFrame keeps its index, dtypes and labels, or is refused. A table of polars, pyarrow
        or another library with Arrow's interface becomes a pandas DataFrame, or with `format` a pyarrow
        Table or a polars DataFrame. `export` writes a table to a file instead.

        With `lossy`, no DataFrame is refused: what cannot be sent comes as text. If anything was
        changed, `frame.attrs["kernelbroker_changes"]` is a list of the changes (dicts with `part`,
        `column` and `change`), and a `LossyTableWarning` tells them as well. A pyarrow Table has the list
        in its schema's metadata, as JSON under `kernelbroker`, key `changes`.

        Args:
            name: of the variable.
            lossy: whether to send a table that cannot be sent unchanged.
            max_bytes: memory that the table may take here. The table comes from a sandbox, which is
                not trusted.

        Raises:
            NotFound, Conflict: there is no such variable, it is no table, or it cannot be sent unchanged.
            TooLarge: the table takes more than `max_bytes`.
            RequestError, ConnectionLost, SessionGone: as the other calls.
            ImportError: pyarrow (or pandas, polars) is not installed here.
        """
        return await self._requests.table(name, format, lossy, max_bytes)

    async def export(
        self,
        name: str,
        local: str | os.PathLike[str],
        format: ExportFormat | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write a whole table to a local file, when earlier cells have ended.

            await session.export("df", "table.parquet")

        The file appears, or is replaced, when it is complete.

        Args:
            name: of the variable.
            format: `csv`, `parquet`, `arrow` (an IPC stream) or `json`; by default from the suffix.
            progress: called with the bytes received and the bytes in all (None if not known).

        Raises:
            ValueError: the format is not given, and the suffix is unknown.
            OSError: the local file cannot be written.
            NotFound, Conflict, RequestError, ConnectionLost, SessionGone: as `table`.
        """
        await self._requests.export(name, local, format, progress)

    async def install(
        self,
        *packages: str,
        timeout: float | None = None,
        confirm: str | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
    ) -> ExecutionResult:
        """Install packages, such as `"name"` or `"name>=1.2"`, for this session only.

        They can be imported at once, and stay when the kernel is replaced. The callbacks get the
        installer's output as it comes. An installation that fails is a result, as with `run`.

        Args:
            timeout: seconds until it is interrupted; by default the longest that the broker allows.
            confirm: the `confirmation` of the ConfirmationRequired that this installation got before.

        Raises:
            BadRequest: a package is not a name with versions.
            Conflict: the broker has nothing to install from.
            PolicyRefused, ConfirmationRequired: as `run`.
            RequestError, ConnectionLost, SessionGone: as the other calls.
        """
        request = InstallRequest(packages=list(packages), timeout=timeout, confirm=confirm)
        callbacks: Callbacks = {events.Stdout: on_stdout, events.Stderr: on_stderr}
        return await collect(self._requests.install(request), callbacks)

    async def executions(self) -> list[ExecutionInfo]:
        """Return the session's executions, oldest first: unfinished ones and the newest ended ones."""
        return await self._requests.executions()

    async def events(self, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the session's events for a front end, stored ones first, until the session ends.

            async for event in session.events():
                print(event["seq"], event["type"])

        Operations on the project yield `code_operation`, `test_output` and `result`; what planners post
        comes as well. A lost connection is made again. See docs/session-events.md.

        Args:
            after: the `seq` of the last event that is known; 0 for all that are stored.

        Raises:
            ConnectionLost, ConnectionFailed: the broker could not be reached again.
            NotFound, SessionGone, RequestError: as the other calls.
        """
        async with aclosing(self._requests.session_events(after)) as stream:
            async for event in stream:
                yield event

    async def post_event(
        self, event: str | Mapping[str, Any], fields: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Post an event of a planner to the session's events, and return it as it is stored.

            await session.post_event("plan", {"steps": ["read the tests", "fix the service"]})

        Args:
            event: the type, or the whole event with its `type`.
            fields: of the event, if only its type was given.

        Raises:
            BadRequest: the type is unknown, or a field is invalid, unknown or too large.
            TooManyRequests: more than 600 events were posted in a minute.
            SessionGone: the session has ended.
        """
        whole = {"type": event} if isinstance(event, str) else dict(event)
        return await self._requests.post_event({**whole, **(fields or {})})

    async def notebook(self) -> dict[str, Any]:
        """Return the session as a notebook (nbformat 4.5): its executions with their outputs so far.

        The output is untrusted. Front ends run no scripts of a notebook that its reader has not run.

        Raises:
            TooLarge: the executions take more than 64 MiB.
        """
        return await self._requests.notebook()

    async def update(
        self,
        *,
        idle_timeout: float | None = None,
        max_lifetime: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
    ) -> SessionInfo:
        """Change the session's timeouts (seconds), metadata or limits; None leaves a value as it is.

        Args:
            limits: replace the earlier ones, up to those of the template.

        Raises:
            BadRequest: more than the broker allows, or less memory than the sandbox uses.
        """
        changes = {
            "idle_timeout": idle_timeout,
            "max_lifetime": max_lifetime,
            "metadata": None if metadata is None else dict(metadata),
            "limits": limits,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        return await self._requests.update(given)

    async def checkpoint(self, name: str, mode: CheckpointMode = "values") -> CheckpointInfo:
        """Save the variables and the files under a name, when earlier cells have ended.

            saved = await session.checkpoint("prepared")
            later = broker.session(from_checkpoint="prepared")

        Each variable is saved by itself. `missing` lists those that cannot be saved, such as open files
        and generators, with the reasons. An earlier checkpoint of this name is replaced when the new one
        is complete.

        Args:
            mode: `process` saves the living processes whole, with generators, threads and open files. The
                session stands still meanwhile, and goes on. The broker must offer it for the template.

        Raises:
            TooLarge: the checkpoint, or all of the tenant, would be too large.
            Conflict: the sandbox's image cannot make checkpoints; or its processes cannot be saved, for
                example because a cell runs.
            RequestError, ConnectionLost, SessionGone: as the other calls.
        """
        return await self._requests.checkpoint(CheckpointRequest(name=name, mode=mode))

    async def fork(
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
        """Return an open session with the variables and a copy of the files of this one.

            async with await session.fork() as trial:
                await trial.run("df = df.dropna()")     # this session's df is unchanged

        The two go separate ways. Environment variables and secrets, and what is not given here, are
        those of this session. `fork.info.not_restored` lists what could not be taken over on loading,
        and `checkpoint` what cannot be saved.

        Args:
            mode: as that of `checkpoint`; `process` by default where the session's processes can be saved.

        Raises:
            Conflict: a session with this id is open.
            as `checkpoint` and `open`.
        """
        options = ForkOptions(
            session_id=session_id,
            mode=mode,
            template=template,
            workspace=workspace,
            metadata=None if metadata is None else dict(metadata),
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
        )
        info = await self._requests.fork(options)
        fork = Session(
            self._address,
            Open(session_id=info.session_id, template=info.template),
            keep=keep,
            timeouts=self._timeouts,
            open_sessions=self._open_sessions,
            known=info,
        )
        return await fork.open()

    async def context(
        self,
        context_id: str | None = None,
        *,
        language: str = "python",
        cwd: str | None = None,
        on_error: OnError | None = None,
        metadata: Mapping[str, Any] | None = None,
        keep: bool | None = None,
    ) -> Session:
        """Open a context: one more kernel in the sandbox of this session.

            context = await session.context(language="bash", cwd="project")
            await context.run("ls")

        It has its own variables and its own order of executions, which run beside those of the session. It
        shares the files, the environment, the secrets, the limits and the network. It ends with the
        session, or when it is closed. If the session's sandbox is replaced, the variables of all its
        contexts are lost, and their next result says `kernel_restarted`.

        Args:
            context_id: use the context with this id if it is open, else open a new one with this id.
            language: that of its cells: `python`, `javascript` or `bash` (`shell`).
            cwd: working directory, relative to `/data`; that of the session if None.
            on_error: see `run`; that of the session if None.
            metadata: your own notes, kept with the context.
            keep: `close` and `async with` only close the connection; the context stays open. By default
                they close a context that this client has opened, and keep one that was there.

        Raises:
            BadRequest: there is no such language or directory.
            TooManyRequests: the session has all contexts that it may have.
            RequestError, ConnectionLost, SessionGone: as the other calls.
        """
        await self.open()
        request = Open(
            session_id=context_id or None,
            language=language,
            cwd=cwd,
            on_error=on_error,
            metadata=dict(metadata or {}),
            context_of=self.session_id,
        )
        context = Session(
            self._address,
            request,
            keep=keep,
            timeouts=self._timeouts,
            open_sessions=self._open_sessions,
        )
        return await context.open()

    async def contexts(self) -> list[SessionInfo]:
        """Return the contexts of this session, oldest first; their ids are `session_id`."""
        return await self._requests.contexts()

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell. The variables are kept."""
        await (await self._opened()).operate(Interrupt())

    async def restart(self) -> None:
        """Replace the kernel. Variables are lost; files are kept."""
        await (await self._opened()).operate(Restart())

    async def close(self) -> None:
        """Close the session (with `keep`, or if another client has opened it, the connection only).

        Closing again has no effect.

        If cells were submitted, the broker closes it when they have ended, and this does not wait for that.
        """
        self._is_closed = True
        self._open_sessions.discard(self)
        connection, self._connection = self._connection, None
        if connection is None:
            return
        is_lost = connection.has_lost_session
        await connection.close(when_idle=self._has_submitted)
        if is_lost and not connection.keeps and not self._has_submitted:
            path = f"/api/v1/sessions/{self.session_id}"
            with suppress(KernelBrokerError):  # The broker closes it after `idle_timeout` anyway.
                await call(self._address, "DELETE", path, CLOSE_TIMEOUT)

    async def __aenter__(self) -> Session:
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _opened(self) -> SessionConnection:
        if self._connection is not None:
            return self._connection
        async with self._opening.current:
            if self._is_closed:
                raise SessionGone("this client closed the session: open a new one")
            if self._connection is None:
                connection = SessionConnection(
                    self._address, self._request, keep=self._keep, timeouts=self._timeouts
                )
                try:
                    await connection.open(self._known)
                except BaseException:
                    # The broker may have opened and closed a session under this id: take another one.
                    if not self._is_named:
                        self._request.session_id = uuid4().hex
                    raise
                self._connection = connection
                self._open_sessions.add(self)
                if self._is_closed:
                    await self.close()
                    raise SessionGone("this client closed the session: open a new one")
        return self._connection

    async def _path(self) -> str:
        """The session's path at the broker; the session is open then."""
        await self._opened()
        return f"/api/v1/sessions/{self.session_id}"
