"""The files of a session's workspace, served by its sandbox.

The broker opens no file itself. It asks the gateway in the sandbox, which user code may control, and
checks the form of every answer. Paths are relative to `/data`, or with `system` to the root of the
sandbox's own file system, which ends with the sandbox. Bytes of a name that are not UTF-8 are lone
surrogates (PEP 383).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import msgspec
from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    ProtocolError,
    RequestError,
    TooLarge,
)
from kernelbroker.protocol.messages import FileList
from kernelbroker_kernel.contract import (
    ENTRIES_PATH,
    FILES_PATH,
    MAX_LIST_BYTES,
    METADATA_HEADER,
    SYSTEM_FILES_PATH,
)

from ..kernels.transfer import GatewayRequest, TransferFailed
from ..sessions.session import Session
from ..workspaces.directory_plans import DirectoryPlan
from .file_operations import file_operation

_REFUSAL_BYTES = 64 * 1024
_REFUSAL_CHARS = 1000
_REFUSALS: dict[str, type[RequestError]] = {
    cls.code: cls for cls in (BadRequest, NotFound, Conflict, TooLarge)
}
_AREAS = {False: FILES_PATH, True: SYSTEM_FILES_PATH}
"""The gateway's paths, by whether they are of the sandbox's own file system."""
_CONTENT_RANGE = re.compile(r"bytes (?:\d{1,19}-\d{1,19}|\*)/\d{1,19}")


class _Refusal(msgspec.Struct):
    code: str
    message: str


class Body(Protocol):
    """Content that is read once."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The content in pieces. Raises if it breaks off."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file, or a part of it, whose content has not been read yet.

    Attributes:
        status: 200, 206 (a part, see `content_range`), or 416 (the file has no such part).
        size: length of the content in bytes.
        body: read the content from its `chunks`.
    """

    status: int
    size: int
    content_range: str | None
    body: Body


@contextlib.asynccontextmanager
async def read(
    session: Session, path: str, *, part: str | None = None, system: bool = False
) -> AsyncIterator[Download]:
    """Read a file.

    Args:
        part: the value of a Range header, to read a part.

    Raises:
        NotFound: there is no such file.
        Conflict: it is a directory or another kind of entry.
        BadRequest: the path is invalid.
        SessionGone, TooManyRequests, Unavailable: as `Session.borrow`.
    """
    headers = {"Range": part} if part else {}
    with file_operation(session, "download", _shown(path, system)) as progress:
        async with asked(session, "GET", _AREAS[system], path, headers) as exchange:
            download = await _describe(exchange)
            try:
                yield download
            finally:
                progress.size = exchange.received


async def _describe(exchange: GatewayRequest) -> Download:
    await expect(exchange, 200, 206, 416)
    length = exchange.headers.get("content-length", "")
    content_range = exchange.headers.get("content-range")
    if not length or (exchange.status == 200) != (content_range is None):
        raise TransferFailed("the sandbox did not describe the file")
    if content_range is not None and not _CONTENT_RANGE.fullmatch(content_range):
        raise TransferFailed("the sandbox did not describe the part of the file")
    return Download(exchange.status, int(length), content_range, exchange)


async def write(
    session: Session,
    path: str,
    data: AsyncIterable[bytes],
    length: int | None,
    *,
    system: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Create or replace a file.

    The file appears when it is complete. If `data` raises or the caller is cancelled, nothing is left.

    Args:
        data: the content.
        length: of the content in bytes; None if unknown.
        metadata: texts by key that are kept with the file.

    Raises:
        BadRequest: the file system cannot keep the metadata, or so much.
        TooLarge: it does not fit into the workspace or on the disk.
        Other errors: as `read`.
    """
    framing = {"Transfer-Encoding": "chunked"}
    if length is not None:
        framing = {"Content-Length": str(length)}
    if metadata:
        framing[METADATA_HEADER] = json.dumps(dict(metadata))
    with file_operation(session, "upload", _shown(path, system)) as progress:
        async with (
            session.upload(0 if system else length or 0) as upload,
            asked(session, "PUT", _AREAS[system], path, framing, changes=True) as exchange,
        ):
            async for chunk in data:
                if length is None and not system:
                    await upload.grow(len(chunk))
                progress.size += len(chunk)
                if not await exchange.send(chunk):
                    break
            await expect(exchange, 204)


async def list_(session: Session, path: str, *, recursive: bool) -> FileList:
    """List a directory, sorted by path. Anything else gives its own entry. Raises as `read`."""
    query = "?recursive=true" if recursive else ""
    async with asked(session, "GET", ENTRIES_PATH, path, query=query) as exchange:
        await expect(exchange, 200)
        try:
            return decode_as(await exchange.body(MAX_LIST_BYTES), FileList)
        except ProtocolError as exc:
            raise TransferFailed("the sandbox sent an invalid list of files") from exc


async def delete(session: Session, path: str, *, recursive: bool, system: bool = False) -> None:
    """Delete a file, a link, an empty directory, or with `recursive` any. Raises as `read`."""
    query = "?recursive=true" if recursive else ""
    with file_operation(session, "delete", _shown(path, system)):
        await _change(session, "DELETE", path, query, system)


async def make_directory(session: Session, path: str, *, system: bool = False) -> None:
    """Create a directory and its parents. It may exist already. Raises as `write`."""
    with file_operation(session, "mkdir", _shown(path, system)):
        async with session.upload(0):
            await _change(session, "POST", path, "?op=mkdir", system)


async def follow(session: Session, plan: DirectoryPlan) -> None:
    """Make what a layout consists of, where it is missing. Raises as `write`."""
    for path in plan.directories:
        await make_directory(session, path)
    for path, text in plan.files.items():
        try:
            await list_(session, path, recursive=False)
        except NotFound:
            content = text.encode()
            await write(session, path, _once(content), len(content))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def move(session: Session, path: str, target: str, *, system: bool = False) -> None:
    """Rename a file or a directory. A file at `target` is replaced. Raises as `read`."""
    with file_operation(session, "move", _shown(path, system), _shown(target, system)):
        await _change(session, "POST", path, f"?op=move&to={quoted(target)}", system)


async def _change(session: Session, method: str, path: str, query: str, system: bool) -> None:
    framing = {"Content-Length": "0"}
    async with asked(
        session, method, _AREAS[system], path, framing, query=query, changes=True
    ) as exchange:
        await expect(exchange, 204)


@contextlib.asynccontextmanager
async def asked(
    session: Session,
    method: str,
    prefix: str,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    query: str = "",
    changes: bool = False,
) -> AsyncIterator[GatewayRequest]:
    """Ask the gateway of the living sandbox; see `Session.borrow`."""
    target = f"{prefix}/{quoted(path)}{query}"
    async with (
        session.borrow(changes=changes) as gateway,
        await gateway.request(method, target, headers) as exchange,
    ):
        yield exchange


def _shown(path: str, system: bool) -> str:
    """The path in the audit log."""
    return f"/{path}" if system else path


def quoted(path: str) -> str:
    """Percent-encode a path. Raises BadRequest."""
    try:
        return quote(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise BadRequest("the path has a lone surrogate that is not an escaped byte") from None


async def expect(exchange: GatewayRequest, *expected: int) -> None:
    """Wait for the response's headers. Raises the error that the sandbox sent, or TransferFailed."""
    await exchange.answer()
    if exchange.status in expected:
        return
    try:
        refusal = decode_as(await exchange.body(_REFUSAL_BYTES), _Refusal)
        error = _REFUSALS[refusal.code]
    except (ProtocolError, KeyError):
        if exchange.status == 404:
            raise Conflict(
                "the image of the sandbox is too old for this: the operator must build it again"
            ) from None
        raise TransferFailed(f"the sandbox answered with status {exchange.status}") from None
    raise error(refusal.message[:_REFUSAL_CHARS])
