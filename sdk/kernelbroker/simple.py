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
from contextlib import aclosing
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
    """Runs code in one session that opens at first use, and opens anew when it has ended.

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
        self._lock = asyncio.Lock()

    async def execute(self, code: str, **options: Unpack[RunOptions]) -> ExecutionResult:
        """Run a cell; `options` and what is raised are those of `Session.run`.

        `kernel_restarted` in the result is also true where the session had ended since the last cell
        and this one ran in a new one.
        """
        options.setdefault("timeout", self._timeout)
        session, is_anew = await self._opened()
        result = await session.run(code, **options)
        return replace(result, kernel_restarted=True) if is_anew else result

    async def stream_execute(
        self, code: str, **options: Unpack[ExecutionOptions]
    ) -> AsyncGenerator[StreamChunk, None]:
        """Run a cell and yield its output as it comes; the last chunk is the result."""
        options.setdefault("timeout", self._timeout)
        session, is_anew = await self._opened()
        async with aclosing(session.stream(code, **options)) as stream:
            async for event in stream:
                if is_anew and isinstance(event, events.Result):
                    event.kernel_restarted = True
                if chunk := _chunk(event):
                    yield chunk

    async def upload(self, local: str | PathLike[str], remote: str | None = None) -> None:
        """Copy a local file into the workspace, where cells find it under `/data`."""
        session, _ = await self._opened()
        await session.files.upload(local, remote)

    async def download(self, remote: str, local: str | PathLike[str]) -> None:
        """Copy a file that cells have written to a local one."""
        session, _ = await self._opened()
        await session.files.download(remote, local)

    async def reset(self) -> None:
        """A fresh kernel; the files stay."""
        if self._session is not None:
            try:
                await self._session.restart()
            except SessionGone:
                self._session = None  # The next one is fresh anyway.

    async def health_check(self) -> bool:
        """Whether a broker answers."""
        try:
            await self._broker.health()
        except KernelBrokerError:
            return False
        return True

    async def close(self) -> None:
        """Close the session. The client can be used again, and then begins a new one."""
        self._session = None
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

    async def _opened(self) -> tuple[Session, bool]:
        """An open session, and whether it took the place of one that had ended."""
        async with self._lock:
            had_ended = False
            if self._session is not None:
                try:
                    # Before the cell is sent: one that was sent is never sent to another session.
                    return await self._session.open(), False
                except SessionGone:
                    await self._session.close()
                    self._session, had_ended = None, True
            self._session = await self._broker.session(workspace_retention=0).open()
            return self._session, had_ended


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
