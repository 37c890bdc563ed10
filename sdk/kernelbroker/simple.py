"""The smallest client: give it code, get the result. It keeps a session out of sight.

    async with SandboxClient() as client:
        result = await client.execute("x = 1 + 1; print(x)")
        await client.execute("print(x)")        # the state is kept
        await client.reset()                    # until now

For several sessions and their options see `aio.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from os import PathLike
from types import TracebackType
from typing import Any, Unpack

import msgspec

from .aio import connect
from .options import ExecutionOptions, RunOptions
from .protocol import events
from .protocol.errors import KernelBrokerError, SessionGone
from .results import ExecutionResult
from .session import Session


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One piece of output.

    By `type`, `content` is: `stdout`, `stderr` text; `image` base64 (SVG: text); `display` the MIME
    bundle; `clear` empty, "forget the output so far"; `input` the prompt; and last `result`, the fields
    of the protocol's result as a dict. `mime` stands with images.
    """

    type: str
    content: str | dict[str, Any]
    mime: str | None = None


class SandboxClient:
    """Runs code in one session that opens at first use, and opens anew when it has ended or is lost.

    It may outlive an outage of the broker's, and the event loop that it was used in first; the variables
    of before are lost then, and the next result tells it.

    Args:
        gateway_url, token: the broker's; found as by `kernelbroker.connect` if not given.
        timeout: seconds for each cell, unless `execute` is told otherwise.
    """

    def __init__(
        self, gateway_url: str | None = None, timeout: float = 30, token: str | None = None
    ) -> None:
        self._broker = connect(gateway_url, token)
        self._timeout = timeout
        self._session: Session | None = None
        self._has_lost_state = False
        """Until a result has told that the session took the place of another one."""
        self._lock = asyncio.Lock()

    async def execute(self, code: str, **options: Unpack[RunOptions]) -> ExecutionResult:
        """Run a cell; `options` and what is raised are those of `Session.run`.

        `kernel_restarted` in the result is also true where the session had ended since the last result
        and this cell ran in a new one.
        """
        options.setdefault("timeout", self._timeout)
        session = await self._opened()
        result = await session.run(code, **options)
        return replace(result, kernel_restarted=True) if self._is_to_tell(session) else result

    async def stream_execute(
        self, code: str, **options: Unpack[ExecutionOptions]
    ) -> AsyncGenerator[StreamChunk, None]:
        """Run a cell and yield its output as it comes; the last chunk is the result."""
        options.setdefault("timeout", self._timeout)
        session = await self._opened()
        async with aclosing(session.stream(code, **options)) as stream:
            async for event in stream:
                if isinstance(event, events.Result) and self._is_to_tell(session):
                    event.kernel_restarted = True
                if chunk := _chunk(event):
                    yield chunk

    async def upload(self, local: str | PathLike[str], remote: str | None = None) -> None:
        """Copy a local file into the workspace, where cells find it under `/data`."""
        await (await self._opened()).files.upload(local, remote)

    async def download(self, remote: str, local: str | PathLike[str]) -> None:
        """Copy a file that cells have written to a local one."""
        await (await self._opened()).files.download(remote, local)

    async def reset(self) -> None:
        """A fresh kernel; the files stay."""
        if (before := self._session) is not None and await self._opened() is before:
            with suppress(SessionGone):  # The next one is fresh anyway.
                await before.restart()

    async def health_check(self) -> bool:
        """Whether a broker answers."""
        try:
            await self._broker.health()
        except KernelBrokerError:
            return False
        return True

    async def close(self) -> None:
        """Close the session. The client can be used again, and then begins a new one."""
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
        """An open session, a new one where the last has ended or cannot be reached any more."""
        async with self._lock:
            if self._session is not None:
                try:
                    # Before the cell is sent: one that was sent is never sent to another session.
                    return await self._session.open()
                except KernelBrokerError:  # It stays so: what could be tried again has been.
                    lost, self._session, self._has_lost_state = self._session, None, True
                    await lost.close()
            self._session = await self._broker.session(workspace_retention=0).open()
            return self._session

    def _is_to_tell(self, session: Session) -> bool:
        """Whether a result of this session is the first since variables were lost."""
        if not self._has_lost_state or session is not self._session:
            return False
        self._has_lost_state = False
        return True


def _chunk(event: events.Event) -> StreamChunk | None:
    match event:
        case events.Stdout(content=text):
            return StreamChunk("stdout", text)
        case events.Stderr(content=text):
            return StreamChunk("stderr", text)
        case events.Image(mime=mime, content=content):
            return StreamChunk("image", content, mime)
        case events.Display(data=data):
            return StreamChunk("display", data)
        case events.Clear():
            return StreamChunk("clear", "")
        case events.Input(prompt=prompt):
            return StreamChunk("input", prompt)
        case events.Result():
            return StreamChunk("result", msgspec.to_builtins(event))
        case events.Started():
            return None
