"""Workspace files over HTTP, streamed both ways.

What comes out of a sandbox is nobody's page: it is sent as an attachment, with its type guessed from
its name alone, so that no browser shows it under the broker's address.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from collections.abc import AsyncGenerator, Awaitable
from pathlib import PurePosixPath
from typing import Any, Literal

from kernelbroker.protocol.errors import BadRequest, RequestError, TooLarge
from kernelbroker.protocol.messages import ErrorBody, FileList
from tornado.web import stream_request_body

from ..kernels.splice import SourceSilent
from ..sessions import files
from ..sessions.session import Session
from .base import ApiHandler, Authenticated
from .contract import Content, operation
from .download import LARGE_BYTES, Downloading, is_encrypted
from .taken import take

logger = logging.getLogger(__name__)

_SILENCE_S = 60.0
"""How long a client may neither take nor send anything of a file."""
_CHUNKS_AHEAD = 2
"""Of an upload, that may wait to be sent on."""
_BYTES = Content({"application/octet-stream": str})
_NO_LIMIT = 2**62
"""Ours is `limits.file`, with an answer that says so."""


class _Paths(Authenticated):
    """Paths and names are bytes, and need not be UTF-8."""

    def decode_argument(self, value: bytes, name: str | None = None) -> str:  # noqa: ARG002
        return value.decode("utf-8", "surrogateescape")

    def query(self, name: str) -> str | None:
        """One value of the query, as it is: Tornado would change control characters and spaces."""
        values = self.request.query_arguments.get(name)
        return self.decode_argument(values[-1]) if values else None

    def flag(self, name: str) -> bool:
        value = self.query(name) or "false"
        if value not in ("true", "false"):
            raise BadRequest(f"{name} is true or false")
        return value == "true"


class Files(_Paths, ApiHandler):
    @operation({200: FileList}, query={"path": str, "recursive": bool})
    async def get(self, session_id: str) -> None:
        """List what is in a directory of the workspace."""
        session = self.registry.get(session_id)
        recursive = self.flag("recursive")
        self.reply(await files.list_(session, self.query("path") or "", recursive=recursive))


@stream_request_body
class OneFile(_Paths, Downloading):
    """One file or directory."""

    _upload: asyncio.Task[None] | None = None
    _is_complete = False

    # Download.

    @operation({200: _BYTES, 206: _BYTES})
    async def get(self, session_id: str, path: str) -> None:
        """Download a file, or a part of it (`Range`)."""
        session = self.registry.get(session_id)
        part = self.request.headers.get("Range")
        try:
            async with (
                self.until_disconnected(),
                files.read(session, path, part=part) as download,
            ):
                await self._send(path, download)
        except (RequestError, TimeoutError) as exc:
            if not self._headers_written:
                raise
            # There is no other way to say so any more: the client sees that less came than announced.
            logger.info("%s a download broke off: %s", self.request_id, exc)
            self.hang_up()

    @operation({200: None})
    async def head(self, session_id: str, path: str) -> None:
        """Look at a file's size and type."""
        await self.get(session_id, path)

    async def _send(self, path: str, download: files.Download) -> None:
        self.set_header("Accept-Ranges", "bytes")
        if download.content_range is not None:
            self.set_header("Content-Range", download.content_range)
        if download.status == 416:
            message = "the file has no such part; see Content-Range for its size"
            error = ErrorBody(code=BadRequest.code, message=message, request_id=self.request_id)
            self.reply({"error": error}, 416)
            return
        self.set_status(download.status)
        # The sandbox is asked for HEAD as for GET: an answer to HEAD could not say what is wrong.
        await self.send(download.body, _content_type(path), download.size)

    # Upload: the body comes chunk by chunk, and is handed to a task that sends it on.

    def prepare(self) -> Awaitable[None] | None:
        super().prepare()
        if self.request.method != "PUT":
            return None
        session_id, path = self.path_kwargs["session_id"], self.path_kwargs["path"]
        session = self.registry.get(session_id)
        length, limit = self.body_length(), session.limits.max_file_bytes
        connection: Any = self.request.connection
        connection.set_max_body_size(_NO_LIMIT)
        if length is not None and length > limit:
            raise _too_large(limit)
        if length is not None and length >= LARGE_BYTES and not is_encrypted(connection):
            return self._pass_by_upload(session, path, length)
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS_AHEAD)
        self._has_room = asyncio.Event()
        work = files.write(session, path, self._incoming(limit), length)
        self._upload = asyncio.create_task(work, name=f"upload {self.request_id}")
        self._upload.add_done_callback(self._on_uploaded)
        return None

    async def _pass_by_upload(self, session: Session, path: str, length: int) -> None:
        """A large body goes past us and Tornado, and the request ends with it: `put` is not reached."""
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

    async def data_received(self, chunk: bytes) -> None:
        if self._upload is not None:
            await self._hand_over(chunk)

    @operation({204: None}, body=_BYTES)
    async def put(self, session_id: str, path: str) -> None:  # noqa: ARG002  known since `prepare`
        """Upload a file; its directories are made, and it replaces one that is there."""
        self._is_complete = True
        assert self._upload is not None, "made in `prepare`"
        async with self.until_disconnected():
            await self._hand_over(b"")
            await self._upload
            self.set_status(204)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._upload is not None:
            self._upload.cancel()

    async def _hand_over(self, chunk: bytes) -> None:
        """Give it to the upload, as soon as there is room; or nobody, if that has ended."""
        assert self._upload is not None, "made in `prepare`"
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

    # The rest.

    @operation({204: None}, query={"recursive": bool})
    async def delete(self, session_id: str, path: str) -> None:
        """Delete a file, or a directory with all that is in it."""
        session = self.registry.get(session_id)
        await files.delete(session, path, recursive=self.flag("recursive"))
        self.set_status(204)

    @operation({204: None}, query={"op": Literal["mkdir", "move"], "to": str})
    async def post(self, session_id: str, path: str) -> None:
        """Make a directory, or move what is there to another path."""
        session = self.registry.get(session_id)
        match self.query("op"):
            case "mkdir":
                await files.make_directory(session, path)
            case "move":
                target = self.query("to")
                if target is None:
                    raise BadRequest("say with 'to' where it is to be moved")
                await files.move(session, path, target)
            case _:
                raise BadRequest("op is mkdir or move")
        self.set_status(204)


def _silent() -> BadRequest:
    return BadRequest(f"nothing came for {_SILENCE_S:g} s; upload it again")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a file has at most {limit:,} bytes (limits.file)")


def _content_type(path: str) -> str:
    # By the suffix alone: the name as a whole would be taken for a URL, `data:…` for one.
    kind, encoding = mimetypes.guess_type(f"file{PurePosixPath(path).suffix}")
    return "application/octet-stream" if kind is None or encoding is not None else kind
