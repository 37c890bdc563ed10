"""The asyncio client: a broker, its sessions, and the cells that run in them.

    async with kernelbroker.connect() as broker:
        async with broker.session() as session:
            async for event in session.stream("for i in range(3): print(i)"):
                ...
            result = await session.run("df.describe()", result_var="df")

A session is one WebSocket (see `channel.py` for lost connections, order and back-pressure). Any await
here may be cancelled; nothing stays behind.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload
from urllib.parse import quote
from uuid import uuid4

import msgspec

from . import arrow, discovery, rest
from .channel import Channel
from .dial import CLOSE_TIMEOUT
from .files import Files
from .options import Callback, ExecutionOptions, RunOptions
from .protocol import events
from .protocol.codec import decode_as, decode_incoming, encode
from .protocol.errors import ConnectionLost, KernelBrokerError, ProtocolError, SessionGone
from .protocol.findings import Assessment, Language
from .protocol.messages import (
    AssessmentRequest,
    Execute,
    InstallRequest,
    Interrupt,
    Open,
    Restart,
    SessionInfo,
    Stdin,
    VariableList,
    WorkspaceInfo,
)
from .results import Collector, ExecutionResult
from .transfer import Transfer

if TYPE_CHECKING:
    import pandas

_CALLBACKS: dict[str, type[events.Event]] = {
    "on_stdout": events.Stdout,
    "on_stderr": events.Stderr,
    "on_image": events.Image,
    "on_display": events.Display,
    "on_input": events.Input,
}


_INSTALL_S = 900.0
"""How long an installation may wait for its turn, or be silent."""
_TURN_S = 30.0
"""How long the broker lets a call wait for the session's cells."""


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
            # An id of our own lets a session be closed even when opening it was cancelled half-way.
            session_id=session_id or uuid4().hex,
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
        return Session(self, request, keep=keep)

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


class Session:
    """A leased kernel with its state and files, as `Broker.session` gives it."""

    def __init__(self, broker: Broker, request: Open, *, keep: bool) -> None:
        self._broker = broker
        self._request = request
        self._keep = keep
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    @property
    def session_id(self) -> str:
        return cast(str, self._request.session_id)

    @property
    def files(self) -> Files:
        """The session's workspace."""
        broker = self._broker
        return Files(broker._address, self.session_id, broker._timeout, self._opened)

    @property
    def info(self) -> SessionInfo | None:
        """The session as the broker described it; None while it is not open."""
        return None if self._channel is None else self._channel.info

    async def open(self) -> Session:
        """Open the session, or make sure that it is open and connected.

        Raises:
            ConnectionFailed, ConnectionLost: no broker answers (any more).
            SessionGone: the session has ended.
            RequestError: the broker refused, for want of capacity say.
        """
        await (await self._opened()).ready()
        return self

    async def run(self, code: str, **options: Unpack[RunOptions]) -> ExecutionResult:
        """Run a cell and wait for its result. A cell that fails is a result too, not an exception.

        Raises:
            PolicyRefused, ConfirmationRequired: the code is too risky to run, or to run unasked; see
                `findings`. After the second, `run(code, confirm=exc.confirmation)` runs it, in the
                same session, once.
            RequestError: the broker refused the execution; it did not run.
            SessionGone: the session ended before the result.
            ConnectionLost: the connection did, and resuming it did not work.
        """
        callbacks = {
            event: callback
            for name, event in _CALLBACKS.items()
            if (callback := cast(dict[str, Callback | None], options).pop(name, None)) is not None
        }
        if events.Input in callbacks:
            options["allow_stdin"] = True
        collector = Collector()
        stream = self.stream(code, **cast(ExecutionOptions, options))
        async with aclosing(stream):
            async for event in stream:
                output = collector.add(event)
                if callback := callbacks.get(type(event)):
                    answer = callback(output)
                    if inspect.isawaitable(answer):
                        answer = await answer
                    if isinstance(event, events.Input):
                        await self.stdin(event.execution_id, str(answer))
        return collector.result()

    async def stream(
        self, code: str, **options: Unpack[ExecutionOptions]
    ) -> AsyncGenerator[events.Event, None]:
        """Run a cell and yield its events as they come; the last one is a `Result`.

        The cell is sent when the first event is asked for. Several streams may be open at once; the
        broker runs their cells one after the other. Leaving early, or being cancelled, leaves the cell
        running unless `on_disconnect="interrupt"`; `contextlib.aclosing` makes it leave at once.

        Raises: as `run`.
        """
        execution_id = uuid4().hex
        channel = await self._opened()
        request = Execute(code=code, execution_id=execution_id, **options)
        inbox = await channel.execute(request, execution_id)
        try:
            while True:
                event = await channel.receive(inbox)
                yield event
                if isinstance(event, events.Result):
                    return
        finally:
            await channel.leave(inbox)

    async def stdin(self, execution_id: str, value: str) -> None:
        """Answer an `input` event."""
        await (await self._opened()).operate(Stdin(execution_id=execution_id, value=value))

    async def variables(self) -> list[events.Variable]:
        """What the session holds, when the cells before have ended; the newest 100, oldest first."""
        await self._opened()
        path = f"/api/v1/sessions/{self.session_id}/variables"
        async with Transfer(
            self._broker._address, "GET", path, self._broker._timeout + _TURN_S
        ) as transfer:
            await transfer.begin()
            await transfer.answer()
            body = b""
            while piece := await transfer.read():
                body += piece
        try:
            return decode_as(body, VariableList).variables
        except ProtocolError as exc:
            raise self._broker._address.unreachable(exc) from exc

    @overload
    async def table(self, name: str, as_: Literal["pandas"] = "pandas") -> pandas.DataFrame: ...
    @overload
    async def table(self, name: str, as_: Literal["arrow", "polars"]) -> Any: ...
    async def table(self, name: str, as_: Literal["pandas", "arrow", "polars"] = "pandas") -> Any:
        """A table of the session's, whole and exact, when the cells before have ended.

        A pandas DataFrame comes as it is, with its index, dtypes and labels; what cannot is refused. A
        table of polars, pyarrow or another library with Arrow's interface comes as pandas has it, or
        with `as_` as a pyarrow Table or a polars DataFrame.

        Raises:
            NotFound, Conflict: there is no such variable; it is no table; Arrow has no type for it.
            RequestError, ConnectionLost, SessionGone: as the other calls.
            ImportError: pyarrow (or pandas, polars) is not installed here.
        """
        await asyncio.to_thread(arrow.expect, as_)
        await self._opened()
        path = f"/api/v1/sessions/{self.session_id}/variables/{quote(name, safe='')}"
        timeout = self._broker._timeout + _TURN_S
        async with Transfer(self._broker._address, "GET", path, timeout) as transfer:
            return await arrow.receive(transfer, as_)

    async def install(
        self,
        *packages: str,
        timeout: float | None = None,
        confirm: str | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
    ) -> ExecutionResult:
        """Install packages, such as `"name"` or `"name>=1.2"`, for this session alone.

        They can be imported at once, and stay, with the session's files, when its kernel is replaced.
        The callbacks get the installer's output as it comes. An installation that fails is a result, as
        with `run`.

        Args:
            timeout: seconds until it is interrupted; by default the longest that the broker allows.
            confirm: the `confirmation` of a ConfirmationRequired that this installation was refused with.

        Raises:
            BadRequest: something is not a name with versions.
            Conflict: the broker has nothing to install from.
            PolicyRefused, ConfirmationRequired: as `run`.
            RequestError, ConnectionLost, SessionGone: as the other calls.
        """
        await self._opened()
        address = self._broker._address
        body = encode(InstallRequest(packages=list(packages), timeout=timeout, confirm=confirm))
        path = f"/api/v1/sessions/{self.session_id}/packages"
        callbacks = {events.Stdout: on_stdout, events.Stderr: on_stderr}
        collector, line = Collector(), b""
        async with Transfer(address, "POST", path, _INSTALL_S) as transfer:
            await transfer.begin(
                {
                    "Content-Length": str(len(body)),
                    "Content-Type": "application/json",
                    "Accept": "application/x-ndjson",
                }
            )
            await transfer.send(body)
            await transfer.answer()
            while piece := await transfer.read_available():
                *lines, line = (line + piece).split(b"\n")
                for text in lines:
                    event = decode_incoming(text)
                    if not isinstance(event, events.Event):
                        continue
                    output = collector.add(event)
                    if callback := callbacks.get(type(event)):
                        answer = callback(output)
                        if inspect.isawaitable(answer):
                            await answer
                    if isinstance(event, events.Result):
                        return collector.result()
        raise ConnectionLost("the connection broke off before the installation had ended")

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; the state stays."""
        await (await self._opened()).operate(Interrupt())

    async def restart(self) -> None:
        """Replace the kernel by a fresh one; the files stay."""
        await (await self._opened()).operate(Restart())

    async def close(self) -> None:
        """Close the session (with `keep`, the connection only). Closing twice is once."""
        self._is_closed = True
        self._broker._sessions.discard(self)
        channel, self._channel = self._channel, None
        if channel is None:
            return
        unreachable = not channel.is_connected and not channel.has_ended
        await channel.close()
        if unreachable and not self._keep:
            path = f"/api/v1/sessions/{self.session_id}"
            with suppress(KernelBrokerError):  # It closes after `idle_timeout` in any case.
                await rest.call(self._broker._address, "DELETE", path, CLOSE_TIMEOUT)

    async def __aenter__(self) -> Session:
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _opened(self) -> Channel:
        if self._channel is not None:
            return self._channel
        async with self._opening:
            if self._is_closed:
                raise SessionGone("this client closed the session")
            if self._channel is None:
                channel = Channel(
                    self._broker._address,
                    self._request,
                    keep=self._keep,
                    timeout=self._broker._timeout,
                )
                await channel.open()
                self._channel = channel
                self._broker._sessions.add(self)
                if self._is_closed:
                    await self.close()
                    raise SessionGone("this client closed the session")
        return self._channel
