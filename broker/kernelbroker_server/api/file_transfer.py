"""What the handlers of files have in common, those of sessions and those of workspaces.

Downloads are attachments whose type is guessed from the file's name, so that no browser renders
untrusted content under the broker's origin.
"""

from __future__ import annotations

import logging
import mimetypes
from contextlib import AbstractAsyncContextManager
from pathlib import PurePosixPath

from kernelbroker.protocol.errors import BadRequest, RequestError
from kernelbroker.protocol.messages import ErrorBody

from ..service import files
from .base import Authenticated
from .download import Downloading
from .openapi import Content
from .upload import Uploading

logger = logging.getLogger(__name__)

BYTES = Content({"application/octet-stream": str})


class FilePaths(Authenticated):
    """Accepts paths and names that are not UTF-8."""

    def decode_argument(self, value: bytes, name: str | None = None) -> str:  # noqa: ARG002
        return value.decode("utf-8", "surrogateescape")

    def query(self, name: str) -> str | None:
        """Return one query parameter unchanged. Tornado's own method alters control characters."""
        values = self.request.query_arguments.get(name)
        return self.decode_argument(values[-1]) if values else None

    def flag(self, name: str) -> bool:
        value = self.query(name)
        if value is None:
            return False
        if value not in ("true", "false"):
            raise BadRequest(f"{name} must be true or false")
        return value == "true"


class FileTransfer(FilePaths, Uploading, Downloading):
    """Sends one file."""

    async def send_file(
        self, path: str, reading: AbstractAsyncContextManager[files.Download]
    ) -> None:
        """Answer with a file."""
        try:
            async with self.until_disconnected(), reading as download:
                await self._send(path, download)
        except (RequestError, TimeoutError) as exc:
            if not self._headers_written:
                raise
            # The headers are sent, so the client learns of it from a body that is too short.
            logger.info("a download broke off: %s", exc)
            self.hang_up()

    @property
    def part(self) -> str | None:
        """The part of the file that is asked for."""
        return self.request.headers.get("Range")

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


def _content_type(path: str) -> str:
    # Only the suffix counts. mimetypes would take a whole name such as `data:…` for a URL.
    kind, encoding = mimetypes.guess_type(f"file{PurePosixPath(path).suffix}")
    return "application/octet-stream" if kind is None or encoding is not None else kind
