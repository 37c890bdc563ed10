"""Workspace files over HTTP, streamed both ways.

What comes out of a sandbox is nobody's page: it is sent as an attachment, with its type guessed from
its name alone, so that no browser shows it under the broker's address.
"""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Awaitable
from pathlib import PurePosixPath
from typing import Literal

from kernelbroker.protocol.errors import BadRequest, RequestError
from kernelbroker.protocol.messages import ErrorBody, FileList
from tornado.web import stream_request_body

from ..sessions import files
from .base import ApiHandler, Authenticated
from .contract import Content, operation
from .download import Downloading
from .upload import Uploading

logger = logging.getLogger(__name__)

_BYTES = Content({"application/octet-stream": str})


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
class OneFile(_Paths, Uploading, Downloading):
    """One file or directory."""

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

    # Upload.

    def prepare(self) -> Awaitable[None] | None:
        super().prepare()
        if self.request.method != "PUT":
            return None
        session = self.registry.get(self.path_kwargs["session_id"])
        return self.receive(session, self.path_kwargs["path"])

    @operation({204: None}, body=_BYTES)
    async def put(self, session_id: str, path: str) -> None:  # noqa: ARG002  known since `prepare`
        """Upload a file; its directories are made, and it replaces one that is there."""
        await self.complete()

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


def _content_type(path: str) -> str:
    # By the suffix alone: the name as a whole would be taken for a URL, `data:…` for one.
    kind, encoding = mimetypes.guess_type(f"file{PurePosixPath(path).suffix}")
    return "application/octet-stream" if kind is None or encoding is not None else kind
