"""`/files` on port 49983: files of a sandbox, read and written, also by signed URLs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    RequestError,
    TooLarge,
    Unauthorized,
)
from tornado.web import stream_request_body

from ...api.download import Downloading
from ...service import files
from ...telemetry.logs import bind
from ..handlers import SandboxHandler
from .places import Place, check_user, place_of
from .upload import Multipart, OneFile, Sink, Unpacked

logger = logging.getLogger(__name__)

_UNLIMITED = 2**62
_READ_BYTES = 512 * 1024
_DISCARDED_BYTES = 64 * 1024**2
"""Of a body that is refused. Then the connection is closed."""
_NO_SPACE = 507
_METADATA_HEADER = "x-metadata-"
"""Begins the names of headers that hold the metadata of files."""


@stream_request_body
class FilesHandler(SandboxHandler, Downloading):
    """GET reads a file; POST writes one, or several of a multipart body."""

    _sink: Sink | None = None
    _failure: RequestError | None = None
    _discarded = 0

    # Who may.

    def authenticate(self) -> None:
        if (signature := self._query("signature")) is None:
            super().authenticate()
            return
        operation = "read" if self.request.method in ("GET", "HEAD") else "write"
        expiration = self._query("signature_expiration")
        if expiration is not None and not (expiration.isdigit() and int(expiration) > time.time()):
            raise Unauthorized("the signature of the URL has expired: make a new URL")
        parts = [self._query("path") or "", operation, self._query("username") or ""]
        for tenant, sandbox_id in self._sandboxes():
            token = self.access.of(tenant, sandbox_id)
            signed = [*parts, token, *([] if expiration is None else [expiration])]
            if hmac.compare_digest(_signature(signed), signature.encode()):
                self.address = replace(self.address, sandbox_id=sandbox_id)
                self.identify(self.opener_of(tenant))
                bind(session_id=sandbox_id)
                return
        raise Unauthorized("the signature of the URL is not valid, or its sandbox has ended")

    def _sandboxes(self) -> Iterator[tuple[str, str]]:
        """The sandboxes that may be meant, with their tenants."""
        for service in self.service.tenants:
            for session in service.registry.list():
                if self.address.sandbox_id in ("", session.id):
                    yield service.name, session.id

    # Reading.

    async def get(self) -> None:
        place = self._place(self._query("path") or "")
        session = await self.session()
        try:
            async with (
                self.until_disconnected(),
                session.streams.transfers,
                files.read(
                    session, place.path, part=self.request.headers.get("Range"), system=place.system
                ) as download,
            ):
                if download.content_range is not None:
                    self.set_header("Content-Range", download.content_range)
                self.set_status(download.status)
                await self.send(download.body, "application/octet-stream", download.size)
        except (RequestError, TimeoutError) as exc:
            if not self._headers_written:
                raise
            logger.info("a download broke off: %s", exc)
            self.hang_up()

    async def head(self) -> None:
        await self.get()

    # Writing.

    async def prepare(self) -> None:
        done = super().prepare()
        if done is not None:
            await done
        if self._finished or self.request.method != "POST":
            return
        self._place("")
        session = await self.session()
        connection: Any = self.request.connection
        connection.set_max_body_size(_UNLIMITED)
        connection.set_body_timeout(_UNLIMITED)
        connection.stream.read_chunk_size = _READ_BYTES
        kind = self.request.headers.get("Content-Type", "")
        encoding = self.request.headers.get("Content-Encoding", "")
        if encoding not in ("", "identity", "gzip"):
            raise BadRequest(f"the body is compressed with {encoding!r}; only gzip is possible")
        length = None if encoding == "gzip" else self.body_length()
        if kind.lower().startswith("multipart/form-data"):
            self._sink = Multipart(session, kind, self._place_of_part, self._metadata)
        else:
            path = self._query("path")
            if not path:
                raise BadRequest("name the file: add ?path=PATH")
            self._sink = OneFile(session, self._place(path), length, self._metadata)
        if encoding == "gzip":
            self._sink = Unpacked(self._sink)

    async def data_received(self, chunk: bytes) -> None:
        if self._sink is None:
            return
        if self._failure is not None:
            self._discarded += len(chunk)
            if self._discarded > _DISCARDED_BYTES:
                self.hang_up()
            return
        try:
            await self._sink.feed(chunk)
        except RequestError as exc:
            self._failure = exc
            self._sink.cancel()

    async def post(self) -> None:
        assert self._sink is not None, "made in `prepare`"
        try:
            async with self.until_disconnected():
                if self._failure is not None:
                    raise self._failure
                places = await self._sink.finish()
        except BaseException:
            self._sink.cancel()
            raise
        self.set_header("Content-Type", "application/json")
        kept = {"metadata": self._metadata} if self._metadata else {}
        self.finish(
            encode([{"name": p.name, "type": "file", "path": p.absolute, **kept} for p in places])
        )

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._sink is not None:
            self._sink.cancel()

    @property
    def _metadata(self) -> dict[str, str]:
        """What the client sends with the files, by key in small letters."""
        headers = [(name.lower(), value) for name, value in self.request.headers.get_all()]
        return {
            name.removeprefix(_METADATA_HEADER): value
            for name, value in headers
            if name.startswith(_METADATA_HEADER)
        }

    _parts = 0

    def _place_of_part(self, name: str) -> Place:
        self._parts += 1
        if (path := self._query("path")) is not None:
            if self._parts > 1:
                raise BadRequest(
                    "with ?path= the body has one file; leave it out to name each file"
                )
            return self._place(path)
        if not name:
            raise BadRequest("a part 'file' of the body has no file name")
        return self._place(name)

    # Both.

    def _query(self, name: str) -> str | None:
        values = self.request.query_arguments.get(name)
        return values[-1].decode("utf-8", "surrogateescape") if values else None

    def _place(self, path: str) -> Place:
        check_user(self._query("username") or "")
        return place_of(path)

    def error_status(self, error: BaseException | None, default: int) -> int:
        match error:
            case TooLarge():
                return _NO_SPACE
            case Conflict():  # such as a directory in the place of the file
                return 400
            case NotFound():
                return 404
        return super().error_status(error, default)


def _signature(parts: list[str]) -> bytes:
    """E2B's signature of a URL, in version 1."""
    digest = hashlib.sha256(":".join(parts).encode("utf-8", "surrogateescape")).digest()
    return b"v1_" + base64.b64encode(digest).rstrip(b"=")
