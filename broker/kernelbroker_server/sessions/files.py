"""The files of a session's workspace, as its sandbox serves them.

The broker opens nothing itself: it asks the gateway inside, which may be in the hands of user code, and
believes none of its answers further than their form. All paths are relative to `/data`; bytes of a name
that are no UTF-8 stand in it as lone surrogates (PEP 383).
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
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
from kernelbroker_kernel.contract import ENTRIES_PATH, FILES_PATH, MAX_LIST_BYTES

from ..kernels.transfer import Exchange, TransferFailed
from .session import Session

_REFUSAL_BYTES = 64 * 1024
_REFUSAL_CHARS = 1000
_REFUSALS: dict[str, type[RequestError]] = {
    cls.code: cls for cls in (BadRequest, NotFound, Conflict, TooLarge)
}
_CONTENT_RANGE = re.compile(r"bytes (?:\d{1,19}-\d{1,19}|\*)/\d{1,19}")


class _Refusal(msgspec.Struct):
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Download:
    """
    Attributes:
        status: 200, 206 (a part, see `content_range`), or 416 (there is no such part).
        size: bytes that follow.
        body: whose answer they are.
    """

    status: int
    size: int
    content_range: str | None
    body: Exchange


@contextlib.asynccontextmanager
async def read(session: Session, path: str, *, part: str | None = None) -> AsyncIterator[Download]:
    """A file, streamed; with `part`, the value of a Range header, a part of it.

    Raises:
        NotFound, Conflict, BadRequest: there is no such file, or it is none.
        what `Session.visit` raises.
    """
    headers = {"Range": part} if part else {}
    async with _asked(session, "GET", FILES_PATH, path, headers) as exchange:
        await _answer(exchange, 200, 206, 416)
        length = exchange.headers.get("content-length", "")
        content_range = exchange.headers.get("content-range")
        if not length or (exchange.status == 200) != (content_range is None):
            raise TransferFailed("the sandbox did not describe the file")
        if content_range is not None and not _CONTENT_RANGE.fullmatch(content_range):
            raise TransferFailed("the sandbox did not describe the part of the file")
        yield Download(exchange.status, int(length), content_range, exchange)


async def write(
    session: Session, path: str, data: AsyncIterable[bytes], length: int | None
) -> None:
    """Make or replace a file by what `data` yields, `length` bytes if that is known.

    It appears when it is whole. If `data` raises, or the caller is cancelled, nothing is left of it.

    Raises: as `read`, and TooLarge where it is more than the workspace may hold, or the disk can.
    """
    framing = {"Transfer-Encoding": "chunked"}
    if length is not None:
        framing = {"Content-Length": str(length)}
    async with (
        session.upload(length or 0) as upload,
        _asked(session, "PUT", FILES_PATH, path, framing, changes=True) as exchange,
    ):
        async for chunk in data:
            if length is None:
                await upload.grow(len(chunk))
            if not await exchange.send(chunk):
                break
        await _answer(exchange, 204)


async def write_from(
    session: Session, path: str, source: socket.socket, begin: bytes, length: int, silence: float
) -> None:
    """The same with `begin` and what follows it on a socket, without holding it.

    Raises: as `write`, and what `Exchange.take_from` raises.
    """
    framing = {"Content-Length": str(length)}
    async with (
        session.upload(length),
        _asked(session, "PUT", FILES_PATH, path, framing, changes=True) as exchange,
    ):
        if await exchange.send(begin):
            await exchange.take_from(source, length - len(begin), silence)
        await _answer(exchange, 204)


async def list_(session: Session, path: str, *, recursive: bool) -> FileList:
    """What is in a directory, by path; or the one entry of something else. Raises as `read`."""
    query = "?recursive=true" if recursive else ""
    async with _asked(session, "GET", ENTRIES_PATH, path, query=query) as exchange:
        await _answer(exchange, 200)
        try:
            return decode_as(await exchange.body(MAX_LIST_BYTES), FileList)
        except ProtocolError as exc:
            raise TransferFailed("the sandbox sent something else than a list of files") from exc


async def delete(session: Session, path: str, *, recursive: bool) -> None:
    """Remove a file or a link; a directory if it is empty or all of it is to go. Raises as `read`."""
    query = "?recursive=true" if recursive else ""
    async with _asked(session, "DELETE", FILES_PATH, path, query=query, changes=True) as exchange:
        await _answer(exchange, 204)


async def make_directory(session: Session, path: str) -> None:
    """Make a directory, and those above it; one that is there will do. Raises as `write`."""
    framing = {"Content-Length": "0"}
    query = "?op=mkdir"
    async with (
        session.upload(0),
        _asked(session, "POST", FILES_PATH, path, framing, query=query, changes=True) as exchange,
    ):
        await _answer(exchange, 204)


async def move(session: Session, path: str, target: str) -> None:
    """Rename a file or a directory; a file at `target` is replaced. Raises as `read`."""
    framing = {"Content-Length": "0"}
    query = f"?op=move&to={_quoted(target)}"
    async with _asked(
        session, "POST", FILES_PATH, path, framing, query=query, changes=True
    ) as exchange:
        await _answer(exchange, 204)


@contextlib.asynccontextmanager
async def _asked(
    session: Session,
    method: str,
    prefix: str,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    query: str = "",
    changes: bool = False,
) -> AsyncIterator[Exchange]:
    target = f"{prefix}/{_quoted(path)}{query}"
    async with (
        session.visit(changes=changes) as client,
        await client.request(method, target, headers) as exchange,
    ):
        yield exchange


def _quoted(path: str) -> str:
    try:
        return quote(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise BadRequest("the path has a lone surrogate that stands for no byte") from None


async def _answer(exchange: Exchange, *expected: int) -> None:
    """Wait for the answer. Raises what the sandbox refuses with, or TransferFailed."""
    await exchange.answer()
    if exchange.status in expected:
        return
    try:
        refusal = decode_as(await exchange.body(_REFUSAL_BYTES), _Refusal)
        error = _REFUSALS[refusal.code]
    except (ProtocolError, KeyError):
        raise TransferFailed(f"the sandbox answered with status {exchange.status}") from None
    raise error(refusal.message[:_REFUSAL_CHARS])
