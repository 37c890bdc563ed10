"""The smallest client: it runs code in a session that it manages by itself.

    async with SandboxClient() as client:
        result = await client.execute("x = 1 + 1; print(x)")
        await client.execute("print(x)")        # the variables are kept
        await client.reset()                    # and now removed

For several sessions and their options see `client.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from ssl import SSLContext
from types import TracebackType
from typing import Any

import msgspec

from .callbacks import DisplayCallback, ImageCallback, TextCallback
from .client import OPEN_TIMEOUT, connect
from .loop_lock import LoopLock
from .protocol import events
from .protocol.errors import KernelBrokerError, SessionGone
from .protocol.findings import Language
from .protocol.messages import OnError
from .results import ExecutionResult
from .session import OnDisconnect, Session


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One piece of output.

    Attributes:
        type: `stdout`, `stderr`, `image`, `display`, `clear` or, last, `result`.
        content: text of `stdout` and `stderr`; base64 of an `image` (SVG: text); the MIME bundle of a
            `display`; empty for `clear`, which removes the output so far; the fields of the protocol's
            result as a dict for `result`.
        mime: of an `image`.
        event: the protocol's event with all its fields. `data` of an image has the other MIME forms of the
            same output.
    """

    type: str
    content: str | dict[str, Any]
    mime: str | None = None
    event: events.Event | None = field(default=None, repr=False, compare=False)


class SandboxClient:
    """Runs code in one session, which opens with the first cell, and again after it has ended.

    The client works again after an outage of the broker, and in one event loop after another. The
    variables are lost then, and the next result has `kernel_restarted`.
    """

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
        """
        Args:
            url, token: the broker's; found as by `kernelbroker.connect` if not given.
            timeout: seconds for each cell, unless `execute` is given another one.
            gateway_url: another name of `url`.
            open_timeout: seconds to wait for a session, as in `kernelbroker.connect`.
            ssl: TLS settings for an `https` URL; by default Python's own.

        Raises:
            TypeError: `url` and `gateway_url` are both given, or `token` is not text.
        """
        if url is not None and gateway_url is not None:
            raise TypeError("url and gateway_url are names of the same argument: give only one")
        if not isinstance(token, str | None):
            raise TypeError("the order of arguments is (url, token, timeout)")
        self._broker = connect(url or gateway_url, token, open_timeout=open_timeout, ssl=ssl)
        self._timeout = timeout
        self._session: Session | None = None
        self._has_lost_state = False
        """Whether the next result must report that the session is a new one."""
        self._lock = LoopLock()

    async def execute(
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
        """Run a cell. The arguments and exceptions are those of `Session.run`.

        `kernel_restarted` is also true if the session had ended and this cell ran in a new one.

        Args:
            timeout: seconds; by default the client's.
            include_df_info: False leaves `dataframe` out of the result.
        """
        session = await self._opened()
        result = await session.run(
            code,
            language=language,
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
            timeout=self._timeout if timeout is None else timeout,
        )
        if not include_df_info:
            result = replace(result, dataframe=None)
        return replace(result, kernel_restarted=True) if self._lost_state(session) else result

    async def stream_execute(
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
    ) -> AsyncGenerator[StreamChunk, None]:
        """Run a cell and yield its output as it comes; the last chunk is the result.

        The arguments are those of `execute`, without callbacks. `input()` is an error in the cell.
        """
        session = await self._opened()
        stream = session.stream(
            code,
            language=language,
            cwd=cwd,
            env=env,
            secrets=secrets,
            result_var=result_var,
            preview_rows=preview_rows,
            on_error=on_error,
            on_disconnect=on_disconnect,
            confirm=confirm,
            timeout=self._timeout if timeout is None else timeout,
        )
        async with aclosing(stream):
            async for event in stream:
                if isinstance(event, events.Result):
                    event.kernel_restarted |= self._lost_state(session)
                    if not include_df_info:
                        event.dataframe = None
                if chunk := _chunk(event):
                    yield chunk

    async def upload(self, local: str | PathLike[str], remote: str | None = None) -> None:
        """Copy a local file into the workspace, where cells find it below `/data`."""
        await (await self._opened()).files.upload(local, remote)

    async def download(self, remote: str, local: str | PathLike[str]) -> None:
        """Copy a file of the workspace to a local file."""
        await (await self._opened()).files.download(remote, local)

    async def reset(self) -> bool:
        """Replace the kernel. Variables are lost; files are kept. Returns True.

        Raises:
            KernelBrokerError: the broker refused, or cannot be reached.
        """
        if (before := self._session) is not None and await self._opened() is before:
            with suppress(SessionGone):  # The next session has a fresh kernel anyway.
                await before.restart()
        return True

    async def health_check(self) -> bool:
        """Return whether a broker answers. Raises nothing."""
        try:
            await self._broker.health()
        except KernelBrokerError:
            return False
        return True

    async def close(self) -> None:
        """Close the session. The client can be used again, and then opens a new one."""
        self._session, self._has_lost_state = None, False
        await self._broker.close()

    async def __aenter__(self) -> SandboxClient:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _opened(self) -> Session:
        """Return an open session; a new one if the last one has ended or cannot be reached."""
        async with self._lock.current:
            if self._session is not None:
                try:
                    # Before the cell is sent: a cell that was sent is never sent to another session.
                    return await self._session.open()
                except KernelBrokerError:  # The session has already retried what can be retried.
                    lost, self._session, self._has_lost_state = self._session, None, True
                    await lost.close()
            self._session = await self._broker.session(workspace_retention=0).open()
            return self._session

    def _lost_state(self, session: Session) -> bool:
        """Whether a result of this session is the first one since the variables were lost."""
        if not self._has_lost_state or session is not self._session:
            return False
        self._has_lost_state = False
        return True


def _chunk(event: events.Event) -> StreamChunk | None:
    match event:
        case events.Stdout(content=text):
            return StreamChunk("stdout", text, event=event)
        case events.Stderr(content=text):
            return StreamChunk("stderr", text, event=event)
        case events.Image(mime=mime, content=content):
            return StreamChunk("image", content, mime, event)
        case events.Display(data=data):
            return StreamChunk("display", data, event=event)
        case events.Clear():
            return StreamChunk("clear", "", event=event)
        case events.Result():
            return StreamChunk("result", msgspec.to_builtins(event), event=event)
        case events.Started() | events.Input():
            return None
