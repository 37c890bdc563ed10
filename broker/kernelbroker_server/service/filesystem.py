"""What a file browser needs of a sandbox's file system: details of entries, and their changes.

Reading and changing files is in `files.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal

import msgspec
from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker_kernel.contract import DETAILS_PATH, MAX_LIST_BYTES, WATCH_PATH

from ..kernels.frames import frames
from ..kernels.transfer import GatewayRequest, TransferFailed
from ..sessions.session import Session
from .files import asked, expect, quoted
from .session_streams import streamed


class EntryDetails(msgspec.Struct):
    """An entry of a directory.

    Attributes:
        path: relative to `/data`, or absolute if it is one of the sandbox's own file system.
        kind: of a link, that of the entry to which it leads; `symlink` if it leads nowhere.
        modified_at: in seconds since the epoch.
        mode: as of stat(2).
        target: where a link leads; None if it is no link.
        metadata: texts by key that are kept with a file.
    """

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    modified_at: float
    mode: int
    target: str | None = None
    metadata: dict[str, str] = {}


class Listing(msgspec.Struct):
    """Entries by path. `truncated`: there are more."""

    entries: list[EntryDetails]
    truncated: bool


class Change(msgspec.Struct, frozen=True):
    """A change below a directory.

    Attributes:
        path: relative to the directory.
        type: `rename` is the old name of an entry that was moved; its new name is created.
    """

    path: str
    type: Literal["create", "write", "remove", "rename", "chmod"]


class Mark(msgspec.Struct, frozen=True):
    """All changes until `mark_watches` was called with this text have come."""

    mark: str


async def details(session: Session, path: str, *, system: bool = False) -> EntryDetails:
    """Describe an entry.

    Args:
        path: relative to `/data`, or with `system` to the root of the sandbox's own file system.

    Raises:
        NotFound: there is no such entry.
        Others: as `files.read`.
    """
    listing = await _listed(session, path, 0, system)
    if not listing.entries:
        raise TransferFailed("the sandbox did not describe the entry")
    return listing.entries[0]


async def listing(session: Session, path: str, depth: int, *, system: bool = False) -> Listing:
    """List the entries below a directory, down to a depth of at least 1. Raises as `details`."""
    return await _listed(session, path, max(1, depth), system)


async def _listed(session: Session, path: str, depth: int, system: bool) -> Listing:
    query = f"?depth={depth}&system={'true' if system else 'false'}"
    async with asked(session, "GET", DETAILS_PATH, path, query=query) as answered:
        await expect(answered, 200)
        try:
            return decode_as(await answered.body(MAX_LIST_BYTES), Listing)
        except ProtocolError as exc:
            raise TransferFailed("the sandbox sent an invalid list of files") from exc


async def mark_watches(session: Session, mark: str) -> None:
    """Have each `watch` of the session yield a `Mark` behind the changes until now. Raises as `details`."""
    async with asked(session, "POST", WATCH_PATH, "", query=f"?mark={mark}") as answered:
        await expect(answered, 200)


@contextlib.asynccontextmanager
async def watch(
    session: Session, path: str, *, recursive: bool, system: bool = False
) -> AsyncIterator[AsyncGenerator[Change | Mark | None, None]]:
    """Watch a directory. Yields its changes from now on; None if there was none for a while.

    Raises:
        As `details`.
    """
    query = f"?recursive={str(recursive).lower()}&system={str(system).lower()}"
    async with streamed(session, "GET", f"{WATCH_PATH}/{quoted(path)}{query}") as answered:
        changes = _changes(answered)
        async with contextlib.aclosing(changes):
            if await anext(changes, False) is not None:
                raise TransferFailed("the sandbox does not watch the directory")
            yield changes


async def _changes(answered: GatewayRequest) -> AsyncGenerator[Change | Mark | None, None]:
    async with contextlib.aclosing(frames(answered)) as received:
        async for kind, content in received:
            try:
                match kind:
                    case b"c":
                        yield decode_as(content, Change)
                    case b"m":
                        yield decode_as(content, Mark)
                    case _:
                        yield None
            except ProtocolError as exc:
                raise TransferFailed("the sandbox sent an invalid frame") from exc
    raise TransferFailed("the sandbox ended")
