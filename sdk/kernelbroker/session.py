"""One session: its cells, and what else is asked of it.

It is one WebSocket (see `channel.py` for lost connections, order and back-pressure), but for what is
large or slow and has a request of its own. Any await here may be cancelled; nothing stays behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload
from urllib.parse import quote
from uuid import uuid4

from . import arrow, rest
from .callbacks import Callbacks, gathered, taken_from
from .channel import Channel
from .dial import CLOSE_TIMEOUT
from .discovery import Address
from .files import Files
from .options import Callback, ExecutionOptions, RunOptions
from .protocol import events
from .protocol.codec import decode_as, decode_incoming, encode
from .protocol.errors import ConnectionLost, KernelBrokerError, ProtocolError, SessionGone
from .protocol.messages import (
    Execute,
    InstallRequest,
    Interrupt,
    Open,
    Restart,
    SessionInfo,
    Stdin,
    VariableList,
)
from .results import ExecutionResult
from .transfer import Transfer

if TYPE_CHECKING:
    import pandas

_INSTALL_S = 900.0
"""How long an installation may wait for its turn, or be silent."""
_TURN_S = 30.0
"""How long the broker lets a call wait for the session's cells."""


class Session:
    """A leased kernel with its state and files, as `Broker.session` gives it.

    Args:
        request: without an id it gets one here, so that a session can be closed even when opening it
            was cancelled half-way.
        open_sessions: of its broker; this one is among them while it is open.
    """

    def __init__(
        self,
        address: Address,
        request: Open,
        *,
        keep: bool,
        timeout: float,
        open_sessions: set[Session],
    ) -> None:
        self._address = address
        self._request = request
        self._is_named = request.session_id is not None
        if not self._is_named:
            request.session_id = uuid4().hex
        self._keep = keep
        self._timeout = timeout
        self._open_sessions = open_sessions
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    @property
    def session_id(self) -> str:
        """As it was given; else one of its own, which is another one after an opening that failed."""
        return cast(str, self._request.session_id)

    @property
    def files(self) -> Files:
        """The session's workspace."""
        return Files(self._address, self._timeout, self._path)

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
        callbacks = taken_from(options)
        if events.Input in callbacks:
            options["allow_stdin"] = True
        stream = self.stream(code, **cast(ExecutionOptions, options))
        return await gathered(stream, callbacks, self.stdin)

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
        async with self._transfer("GET", "variables", self._timeout + _TURN_S) as transfer:
            await transfer.begin()
            await transfer.answer()
            body = await transfer.read_all()
        try:
            return decode_as(body, VariableList).variables
        except ProtocolError as exc:
            raise self._address.unreachable(exc) from exc

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
        path = f"variables/{quote(name, safe='')}"
        async with self._transfer("GET", path, self._timeout + _TURN_S) as transfer:
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
        request = InstallRequest(packages=list(packages), timeout=timeout, confirm=confirm)
        callbacks: Callbacks = {events.Stdout: on_stdout, events.Stderr: on_stderr}
        return await gathered(self._installing(request), callbacks)

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; the state stays."""
        await (await self._opened()).operate(Interrupt())

    async def restart(self) -> None:
        """Replace the kernel by a fresh one; the files stay."""
        await (await self._opened()).operate(Restart())

    async def close(self) -> None:
        """Close the session (with `keep`, the connection only). Closing twice is once."""
        self._is_closed = True
        self._open_sessions.discard(self)
        channel, self._channel = self._channel, None
        if channel is None:
            return
        is_lost = channel.has_lost_session
        await channel.close()
        if is_lost and not self._keep:
            path = f"/api/v1/sessions/{self.session_id}"
            with suppress(KernelBrokerError):  # It closes after `idle_timeout` in any case.
                await rest.call(self._address, "DELETE", path, CLOSE_TIMEOUT)

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
                    self._address,
                    self._request,
                    keep=self._keep,
                    timeout=self._timeout,
                )
                try:
                    await channel.open()
                except BaseException:
                    # Under this id the broker may have closed again what it opened too late.
                    if not self._is_named:
                        self._request.session_id = uuid4().hex
                    raise
                self._channel = channel
                self._open_sessions.add(self)
                if self._is_closed:
                    await self.close()
                    raise SessionGone("this client closed the session")
        return self._channel

    async def _path(self) -> str:
        """Where the session is found over HTTP; it is open then."""
        await self._opened()
        return f"/api/v1/sessions/{self.session_id}"

    @asynccontextmanager
    async def _transfer(
        self, method: str, path: str, timeout: float
    ) -> AsyncGenerator[Transfer, None]:
        """A request about this session, which is open then."""
        where = f"{await self._path()}/{path}"
        async with Transfer(self._address, method, where, timeout) as transfer:
            yield transfer

    async def _installing(self, request: InstallRequest) -> AsyncGenerator[events.Event, None]:
        """The events of an installation, to its result."""
        body, line = encode(request), b""
        async with self._transfer("POST", "packages", _INSTALL_S) as transfer:
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
                    if isinstance(event, events.Event):
                        yield event
                    if isinstance(event, events.Result):
                        return
        raise ConnectionLost("the connection broke off before the installation had ended")
