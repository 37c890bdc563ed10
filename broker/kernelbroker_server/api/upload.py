"""A file's way from a client into a sandbox.

A large one goes past us: the connection is taken from Tornado. Else the body comes chunk by chunk, and is
handed to a task that sends it on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any

from kernelbroker.protocol.errors import BadRequest, TooLarge

from ..kernels.splice import SourceSilent
from ..sessions import files
from ..sessions.session import Session
from .base import Authenticated
from .disconnect import Disconnectable
from .download import LARGE_BYTES, is_encrypted
from .taken import take

_SILENCE_S = 60.0
"""How long a client may send nothing."""
_CHUNKS_AHEAD = 2
"""That may wait to be sent on."""
_NO_LIMIT = 2**62
"""Ours is `limits.file`, with an answer that says so."""


class Uploading(Disconnectable, Authenticated):
    """`receive` begins it, in `prepare`; `complete` ends it, once Tornado has read the body.

    The handler is to be decorated with `stream_request_body`.
    """

    _upload: asyncio.Task[None] | None = None
    _is_complete = False

    def receive(self, session: Session, path: str) -> Awaitable[None] | None:
        """Make the request's body a file; what this returns is for `prepare` to return.

        Raises:
            BadRequest, TooLarge: it announces a length that is none, or too much.
        """
        length, limit = self.body_length(), session.limits.max_file_bytes
        connection: Any = self.request.connection
        connection.set_max_body_size(_NO_LIMIT)
        if length is not None and length > limit:
            raise _too_large(limit)
        if length is not None and length >= LARGE_BYTES and not is_encrypted(connection):
            return self._pass_upload_by(session, path, length)
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS_AHEAD)
        self._has_room = asyncio.Event()
        work = files.write(session, path, self._incoming(limit), length)
        self._upload = asyncio.create_task(work, name=f"upload {self.request_id}")
        self._upload.add_done_callback(self._on_uploaded)
        return None

    async def complete(self) -> None:
        """Wait until the sandbox has all of it, and set the status. Raises as `files.write`."""
        self._is_complete = True
        assert self._upload is not None, "made by `receive`"
        async with self.until_disconnected():
            await self._hand_over(b"")
            await self._upload
            self.set_status(204)

    async def data_received(self, chunk: bytes) -> None:
        if self._upload is not None:
            await self._hand_over(chunk)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._upload is not None:
            self._upload.cancel()

    async def _pass_upload_by(self, session: Session, path: str, length: int) -> None:
        """The request ends here: its method is not reached."""
        async with take(self, length, _SILENCE_S) as taken:
            try:
                await files.write_from(session, path, taken.socket, taken.begin, length, _SILENCE_S)
                self.set_status(204)
                self.finish()
            except Exception as error:
                if isinstance(error, SourceSilent):
                    error = _silent()
                elif isinstance(error, EOFError):
                    error = BadRequest("the body ended before it was complete; upload it again")
                self._tell(error)

    async def _hand_over(self, chunk: bytes) -> None:
        """Give it to the upload, as soon as there is room; or nobody, if that has ended."""
        assert self._upload is not None, "made by `receive`"
        while self._chunks.full() and not self._upload.done():
            self._has_room.clear()
            await self._has_room.wait()
        if not self._upload.done():
            self._chunks.put_nowait(chunk)

    async def _incoming(self, limit: int) -> AsyncGenerator[bytes, None]:
        size = 0
        while True:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    chunk = await self._chunks.get()
                    self._has_room.set()
            except TimeoutError:
                raise _silent() from None
            if not chunk:
                return
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            yield chunk

    def _on_uploaded(self, upload: asyncio.Task[None]) -> None:
        """Say at once what went wrong, whatever is still to come of the body."""
        self._has_room.set()
        error = None if upload.cancelled() else upload.exception()
        if error is not None and not (self._is_complete or self.gone or self._finished):
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        self.log_exception(type(error), error, error.__traceback__)
        self.send_error(500, exc_info=(type(error), error, error.__traceback__))


def _silent() -> BadRequest:
    return BadRequest(f"nothing came for {_SILENCE_S:g} s; upload it again")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a file has at most {limit:,} bytes (limits.file)")
