"""Workspace files over HTTP, streamed in both directions.

Downloads are attachments whose type is guessed from the file's name, so that no browser renders
untrusted content under the broker's origin.
"""

from __future__ import annotations

import logging
import mimetypes
from pathlib import PurePosixPath
from typing import Literal

from kernelbroker.protocol.errors import BadRequest, RequestError
from kernelbroker.protocol.messages import ErrorBody, FileList
from tornado.web import stream_request_body

from ..service import files
from .base import ApiHandler, Authenticated
from .download import Downloading
from .openapi import Content, operation
from .upload import Uploading

logger = logging.getLogger(__name__)

_BYTES = Content({"application/octet-stream": str})


class _Paths(Authenticated):
    """Accepts paths and names that are not UTF-8."""

    def decode_argument(self, value: bytes, name: str | None = None) -> str:  # noqa: ARG002
        return value.decode("utf-8", "surrogateescape")

    def query(self, name: str) -> str | None:
        """Return one query parameter unchanged. Tornado's own method alters control characters."""
        values = self.request.query_arguments.get(name)
        return self.decode_argument(values[-1]) if values else None

    def flag(self, name: str) -> bool:
        value = self.query(name) or "false"
        if value not in ("true", "false"):
            raise BadRequest(f"{name} must be true or false")
        return value == "true"


class Files(_Paths, ApiHandler):
    @operation({200: FileList}, query={"path": str, "recursive": bool})
    async def get(self, session_id: str) -> None:
        """List a directory of the workspace."""
        session = await self.tenant.sessions.resolve(session_id)
        recursive = self.flag("recursive")
        self.reply(await files.list_(session, self.query("path") or "", recursive=recursive))


@stream_request_body
class OneFile(_Paths, Uploading, Downloading):
    """One file or directory."""

    # Download.

    @operation({200: _BYTES, 206: _BYTES})
    async def get(self, session_id: str, path: str) -> None:
        """Download a file, or a part of it (`Range`)."""
        session = await self.tenant.sessions.resolve(session_id)
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
            # The headers are sent, so the client learns of it from a body that is too short.
            logger.info("a download broke off: %s", exc)
            self.hang_up()

    @operation({200: None})
    async def head(self, session_id: str, path: str) -> None:
        """Get a file's size and type."""
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
        # The sandbox gets a GET for a HEAD as well, since an answer to HEAD cannot carry an error.
        await self.send(download.body, _content_type(path), download.size)

    # Upload.

    async def prepare(self) -> None:
        super().prepare()
        if self.request.method == "PUT":
            session = await self.tenant.sessions.resolve(self.path_kwargs["session_id"])
            self.receive(session, self.path_kwargs["path"])

    @operation({204: None}, body=_BYTES)
    async def put(self, session_id: str, path: str) -> None:  # noqa: ARG002  used in `prepare`
        """Upload a file. Missing directories are created, an existing file is replaced."""
        await self.complete()

    # The rest.

    @operation({204: None}, query={"recursive": bool})
    async def delete(self, session_id: str, path: str) -> None:
        """Delete a file, or a directory with its content (`recursive=true`)."""
        session = await self.tenant.sessions.resolve(session_id)
        await files.delete(session, path, recursive=self.flag("recursive"))
        self.set_status(204)

    @operation({204: None}, query={"op": Literal["mkdir", "move"], "to": str})
    async def post(self, session_id: str, path: str) -> None:
        """Create a directory (`op=mkdir`), or move a file or directory (`op=move`)."""
        session = await self.tenant.sessions.resolve(session_id)
        match self.query("op"):
            case "mkdir":
                await files.make_directory(session, path)
            case "move":
                target = self.query("to")
                if target is None:
                    raise BadRequest("op=move needs the target path: add to=PATH")
                await files.move(session, path, target)
            case _:
                raise BadRequest("op must be mkdir or move")
        self.set_status(204)


def _content_type(path: str) -> str:
    # Only the suffix counts. mimetypes would take a whole name such as `data:…` for a URL.
    kind, encoding = mimetypes.guess_type(f"file{PurePosixPath(path).suffix}")
    return "application/octet-stream" if kind is None or encoding is not None else kind
