"""Request bodies that become files, streamed.

Tornado delivers the body in chunks. A task per upload forwards them to the sandbox; a short queue
between the two makes the client wait for a slow sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from kernelbroker.protocol.errors import BadRequest, RequestError, TooLarge

from .base import Authenticated
from .disconnect import Disconnectable

_CLIENT_TIMEOUT_S = 60.0
"""How long a client may send nothing."""
_READ_BYTES = 512 * 1024
"""Read from the client's socket at once."""
_QUEUED_CHUNKS = 2
"""Chunks that may wait to be forwarded."""
_LINGER_S = 1.0
"""How long the rest of the body is dropped before a failed upload is answered. A client that still
sends when the connection is closed would see a reset instead of the answer."""
_UNLIMITED = 2**62
"""Passed to Tornado instead of its own limits: `limits.file` and `_CLIENT_TIMEOUT_S` apply."""


Reported: TypeAlias = AbstractContextManager[object]
Write: TypeAlias = Callable[[AsyncIterable[bytes], int | None], Coroutine[Any, Any, None]]


class Uploading(Disconnectable, Authenticated):
    """Call `receive` in `prepare` to start an upload, and `complete` when Tornado has read the body."""

    _upload: asyncio.Task[None] | None = None
    _is_complete = False

    def receive(self, limit: int, reported: Reported, write: Write) -> None:
        """Start to write the request's body to a file.

        Args:
            limit: bytes that a file may have.
            reported: reports a refused upload, so that the audit log has it.
            write: writes the content; its other argument is the length in bytes, or None if unknown.

        Raises:
            BadRequest: the Content-Length header is invalid.
            TooLarge: the Content-Length header exceeds `limits.file`.
        """
        try:
            length = self._length_within(limit)
        except RequestError:
            with reported:
                raise
        connection: Any = self.request.connection
        connection.set_max_body_size(_UNLIMITED)
        connection.set_body_timeout(_UNLIMITED)
        connection.stream.read_chunk_size = _READ_BYTES
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_QUEUED_CHUNKS)
        self._has_room = asyncio.Event()
        work = write(self._incoming(limit), length)
        self._upload = asyncio.create_task(work, name=f"upload {self.request_id}")
        self._upload.add_done_callback(self._on_uploaded)

    def _length_within(self, limit: int) -> int | None:
        length = self.body_length()
        if length is not None and length > limit:
            raise _too_large(limit)
        return length

    async def complete(self) -> None:
        """Wait until the file is stored. Raises what `write` raises."""
        self._is_complete = True
        assert self._upload is not None, "made by `receive`"
        async with self.until_disconnected():
            await self._forward(b"")
            await self._upload
            self.set_status(204)

    async def data_received(self, chunk: bytes) -> None:
        if self._upload is not None:
            await self._forward(chunk)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._upload is not None:
            self._upload.cancel()

    async def _forward(self, chunk: bytes) -> None:
        """Queue a chunk as soon as there is room. Drop it if the upload has ended."""
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
                async with asyncio.timeout(_CLIENT_TIMEOUT_S):
                    chunk = await self._chunks.get()
                    self._has_room.set()
            except TimeoutError:
                raise BadRequest(
                    f"the client sent nothing for {_CLIENT_TIMEOUT_S:g} s; upload it again"
                ) from None
            if not chunk:
                return
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            yield chunk

    def _on_uploaded(self, upload: asyncio.Task[None]) -> None:
        """Make sure that a failed upload is answered, even if its body does not end."""
        self._has_room.set()
        error = None if upload.cancelled() else upload.exception()
        if error is not None:
            asyncio.get_running_loop().call_later(_LINGER_S, self._answer_early, error)

    def _answer_early(self, error: BaseException) -> None:
        if not (self._is_complete or self.gone or self._finished):
            self.log_exception(type(error), error, error.__traceback__)
            self.send_error(500, exc_info=(type(error), error, error.__traceback__))


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"a file has at most {limit:,} bytes: split it, or have the operator raise limits.file"
    )
