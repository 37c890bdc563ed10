"""The workspace's files over HTTP, beside the gateway's own handlers; for the broker only.

`contract` has the paths. An error is JSON, ``{"code", "message"}``, with one of the broker's codes. File
I/O happens in the gateway's event loop, one chunk at a time, so that output keeps flowing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

from kernel_gateway.mixins import TokenAuthorizationMixin
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler, stream_request_body

from . import details, workspace
from .contract import (
    DETAILS_PATH,
    ENTRIES_PATH,
    FILES_PATH,
    METADATA_HEADER,
    SYSTEM_FILES_PATH,
)
from .errors import Refused, refusing

CHUNK_BYTES = 1024**2
LARGE_BYTES = 1024**2
"""Uploads from this size on bypass Tornado, which would copy each byte three times."""
_STEPS = 200
"""The number of files that are listed or removed before other tasks have a turn."""
_STATUS = {"bad_request": 400, "not_found": 404, "conflict": 409, "too_large": 413}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_NO_LIMIT = 2**62
"""No limit here: the broker limits uploads, and the sandbox's own limits hold in any case."""


class Handler(TokenAuthorizationMixin, RequestHandler):
    """A path of the workspace, in bytes that need not be UTF-8."""

    def decode_argument(self, value: bytes, name: str | None = None) -> str:  # noqa: ARG002
        return os.fsdecode(value)

    def check_xsrf_cookie(self) -> None:
        """No XSRF check: there are no cookies."""

    def argument(self, name: str) -> str:
        """A query argument, with its exact bytes; empty if it is absent."""
        values = self.request.query_arguments.get(name)
        return os.fsdecode(values[-1]) if values else ""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        body = '{"code": "internal_error", "message": "the sandbox could not do it"}'
        if isinstance(error, Refused):
            status_code, body = answer_to(error)
        self.set_status(status_code)
        self.finish(body)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, Refused | StreamClosedError):
            super().log_exception(typ, value, tb)

    def reply(self, value: object) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(value))


def answer_to(refused: Refused) -> tuple[int, str]:
    """Status and body, in ASCII: a name may be invalid Unicode."""
    return _STATUS[refused.code], json.dumps({"code": refused.code, "message": refused.message})


@stream_request_body
class File(Handler):
    """GET, PUT, DELETE; POST ?op=mkdir and ?op=move&to=PATH.

    Args:
        system: the paths are those of the sandbox's own file system.
    """

    def initialize(self, *, system: bool = False) -> None:
        self.system = system

    def components(self, path: str) -> list[str]:
        return workspace.components(path, system=self.system)

    def refusing(self, path: str) -> AbstractContextManager[None]:
        """Translate an OSError about a path, which is named as its user does."""
        return refusing(f"/{path}" if self.system else path)

    upload: workspace.Upload | None = None
    failure: Refused | None = None

    def prepare(self) -> Awaitable[None] | None:
        super().prepare()
        was_refused = self.get_status() == 401
        if was_refused or self.request.method != "PUT":
            return None
        connection: Any = self.request.connection
        connection.set_max_body_size(_NO_LIMIT)
        (path,) = self.path_args
        with self.refusing(path):
            self.upload = workspace.Upload(self.components(path))
        size = int(self.request.headers.get("Content-Length", "0"))
        return self.receive(size) if size >= LARGE_BYTES else None

    async def receive(self, left: int) -> None:
        """Read the body and respond, without Tornado."""
        stream = self.detach()
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while left:
                size = await stream.read_into(buffer[:left], partial=True)  # type: ignore[arg-type]
                self.data_received(buffer[:size])
                left -= size
            head = "HTTP/1.1 204 No Content\r\n\r\n"
            body = ""
            try:
                await self.put(*self.path_args)
            except Refused as refused:
                status, body = answer_to(refused)
                head = f"HTTP/1.1 {status} Refused\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.write((head + body).encode())
        except StreamClosedError:
            pass  # an upload that was not committed is dropped
        finally:
            stream.close()
            self.drop_upload()

    def data_received(self, chunk: bytes | memoryview) -> None:
        if self.upload is None or self.failure is not None:
            return  # ignore the rest of a body that is refused
        try:
            with self.refusing(self.path_args[0]):
                self.upload.write(chunk)
        except Refused as refused:
            self.failure = refused

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.drop_upload()

    def on_finish(self) -> None:
        self.drop_upload()

    def drop_upload(self) -> None:
        if self.upload is not None:
            self.upload.close()
            self.upload = None

    async def get(self, path: str) -> None:
        with self.refusing(path):
            descriptor = workspace.open_file(self.components(path))
        try:
            first, size = self.head_of(os.fstat(descriptor).st_size)
            with suppress(StreamClosedError):
                await self.send(descriptor, first, size)
        finally:
            os.close(descriptor)

    async def put(self, path: str) -> None:
        if self.failure is not None:
            raise self.failure
        assert self.upload is not None, "made in `prepare`"
        if metadata := self.request.headers.get(METADATA_HEADER):
            self.upload.set_metadata(json.loads(metadata))
        with self.refusing(path):
            self.upload.commit()
        self.set_status(204)

    async def delete(self, path: str) -> None:
        recursive = self.argument("recursive") == "true"
        with self.refusing(path):
            await in_turns(workspace.delete(self.components(path), recursive=recursive))
        self.set_status(204)

    async def post(self, path: str) -> None:
        names = self.components(path)
        if self.argument("op") == "mkdir":
            with self.refusing(path):
                workspace.make_directory(names)
        else:
            target = self.components(self.argument("to"))
            with self.refusing(path):
                workspace.move(names, target)
        self.set_status(204)

    def head_of(self, size: int) -> tuple[int, int]:
        """Write the response's head. Returns the start and the length of the part that follows."""
        first, last = 0, size - 1
        part = _RANGE.fullmatch(self.request.headers.get("Range", ""))
        if part and any(part.groups()):  # RFC 9110, section 14: an invalid Range is ignored
            if part[1]:
                first = int(part[1])
                last = min(last, int(part[2])) if part[2] else last
            else:
                first = max(0, size - int(part[2]))
            if part[1] and part[2] and int(part[2]) < first:
                first, last = 0, size - 1
            elif first >= size:
                self.set_status(416)
                self.set_header("Content-Range", f"bytes */{size}")
                self.set_header("Content-Length", "0")
                return 0, 0
            else:
                self.set_status(206)
                self.set_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Length", str(last - first + 1))
        return first, last - first + 1

    async def send(self, descriptor: int, offset: int, left: int) -> None:
        """Send the announced part with sendfile. The connection ends with it."""
        await self.flush()
        if not left:
            return
        stream = self.detach()
        with stream.socket.dup() as connection, os.fdopen(descriptor, "rb", closefd=False) as file:
            stream.close()
            # If the file became shorter, ending the connection early is the only way to signal it.
            await asyncio.get_running_loop().sock_sendfile(connection, file, offset, left)


class Entries(Handler):
    """GET ?recursive=true: the entries of a directory, or the entry of a file."""

    async def get(self, path: str) -> None:
        recursive = self.argument("recursive") == "true"
        listed = workspace.List(workspace.components(path), recursive=recursive)
        with refusing(path):
            await in_turns(listed.read())
        self.reply({"entries": listed.entries, "truncated": listed.truncated})


class Details(Handler):
    """GET ?depth=N&system=true: an entry, or with a depth those below a directory, with all details."""

    async def get(self, path: str) -> None:
        is_system = self.argument("system") == "true"
        names = workspace.components(path, system=is_system)
        depth = int(self.argument("depth") or 0)
        listed = details.Details(names, depth)
        with refusing(f"/{path}" if is_system else path):
            await in_turns(listed.read())
        self.reply({"entries": listed.entries, "truncated": listed.truncated})


ROUTES: list[tuple[Any, ...]] = [
    (f"{FILES_PATH}/(.*)", File),
    (f"{SYSTEM_FILES_PATH}/(.*)", File, {"system": True}),
    (f"{ENTRIES_PATH}/(.*)", Entries),
    (f"{DETAILS_PATH}/(.*)", Details),
]


async def in_turns(work: Iterator[None]) -> None:
    """Run a generator, with other tasks in between."""
    for number, _ in enumerate(work, 1):
        if number % _STEPS == 0:
            await asyncio.sleep(0)
