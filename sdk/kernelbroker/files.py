"""A session's files, as `session.files`.

    await session.files.write("in.csv", "a,b\\n1,2\\n")
    await session.files.upload("large.parquet", "large.parquet", progress=print)
    for file in await session.files.list(recursive=True):
        print(file.path, file.size)
    await session.files.download("plot.png", "plot.png")

Paths are relative to the workspace, `/data`. Files can be transferred while a cell runs. They are
streamed, and a file appears only when it is whole. Any await may be cancelled; no partial file stays.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from .discovery import Address
from .file_transfer import Data, Progress, download, pieces, upload
from .http_request import HTTPRequest
from .protocol.codec import decode_as
from .protocol.errors import BadRequest, ProtocolError
from .protocol.messages import FileInfo, FileList

MAX_LISTING = 64 * 2**20
"""Bytes of a listing that are read."""


class Listing(list[FileInfo]):
    """The entries, sorted by path. `truncated`: there are more than 10,000, the broker's limit."""

    truncated = False


class Files:
    """The workspace of one session, which opens with the first call.

    If the broker refuses, a call raises `NotFound`, `Conflict` (a directory instead of a file, a link, a
    read-only place), `TooLarge`, `BadRequest` (a path outside of the workspace) or `SessionGone`. If the
    broker cannot be reached, it raises `ConnectionFailed` or `ConnectionLost`.

    Args:
        opened: opens the session if needed, and returns its path at the broker.
    """

    def __init__(
        self,
        address: Address,
        timeout: float,
        opened: Callable[[], Awaitable[str]],
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._opened = opened

    async def read(self, path: str) -> bytes:
        """Return a file's content, all of it in memory; `download` streams to a file instead."""
        return b"".join([piece async for piece in self.stream(path)])

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return (await self.read(path)).decode(encoding)

    async def stream(
        self, path: str, progress: Progress | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file's content, piece by piece.

        Args:
            progress: called with the bytes received and the size of the file.

        Raises:
            ConnectionLost: the content is shorter than the broker announced.
        """
        async with aclosing(pieces(self._request("GET", path), progress)) as received:
            async for piece in received:
                yield piece

    async def write(self, path: str, data: Data) -> None:
        """Create or replace a file, and create its parent directories. Text is written as UTF-8."""
        if isinstance(data, str):
            data = data.encode()
        length = len(data) if isinstance(data, bytes) else None
        await upload(self._request("PUT", path), path, data, length, None)

    async def upload(
        self,
        local: str | os.PathLike[str],
        remote: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Copy a local file into the workspace, with its own name if `remote` is not given.

        A pipe or a device is read to its end. If a file grows meanwhile, only its first size is sent.

        Raises:
            OSError: the local file cannot be read.
        """
        source = Path(local)
        with await asyncio.to_thread(source.open, "rb") as file:
            found = os.fstat(file.fileno())
            # Pipes have no size and files of /proc a wrong one: these are read to their end.
            length = found.st_size if stat.S_ISREG(found.st_mode) and found.st_size else None
            path = remote or source.name
            await upload(self._request("PUT", path), path, file, length, progress)

    async def download(
        self, remote: str, local: str | os.PathLike[str], progress: Progress | None = None
    ) -> None:
        """Copy a file of the workspace to a local file.

        The local file appears, or is replaced, when it is complete. If it is a link, its target is
        replaced. A pipe or a device is written to as the data arrives.

        Raises:
            OSError: the local file cannot be written.
        """
        await download(self._request("GET", remote), local, progress)

    async def list(self, path: str = ".", recursive: bool = False) -> Listing:
        """Return the entries of a directory, sorted by path; for a file, its own entry."""
        query = f"?path={_quoted(path)}&recursive={str(recursive).lower()}"
        async with self._request("GET", None, query) as request:
            await request.begin()
            await request.answer()
            body = await request.read_all(MAX_LISTING)
        try:
            found = decode_as(body, FileList)
        except ProtocolError as exc:
            raise self._address.unreachable(exc) from exc
        listing = Listing(found.entries)
        listing.truncated = found.truncated
        return listing

    async def exists(self, path: str) -> bool:
        """Return whether `path` is a file, a directory or another entry."""
        async with self._request("HEAD", path) as request:
            await request.begin()
            status = await request.answer(may_refuse=True)
        if status in (200, 404, 409):
            return status != 404
        await self.list(path)  # Raises what is wrong with the path.
        return True

    async def delete(self, path: str, recursive: bool = False) -> None:
        """Remove a file, a link, or an empty directory; with `recursive` any directory."""
        await self._call("DELETE", path, "?recursive=true" if recursive else "")

    async def move(self, source: str, target: str) -> None:
        """Rename a file or a directory; a file at `target` is replaced."""
        await self._call("POST", source, f"?op=move&to={_quoted(target)}")

    async def mkdir(self, path: str) -> None:
        """Create a directory and its parents. Existing directories are no error."""
        await self._call("POST", path, "?op=mkdir")

    async def _call(self, method: str, path: str, query: str) -> None:
        async with self._request(method, path, query) as request:
            await request.begin({"Content-Length": "0"})
            await request.answer()

    @asynccontextmanager
    async def _request(
        self, method: str, path: str | None, query: str = ""
    ) -> AsyncGenerator[HTTPRequest, None]:
        where = ("" if path is None else f"/{_quoted(path)}") + query
        base = await self._opened()
        async with HTTPRequest(
            self._address, method, f"{base}/files{where}", self._timeout
        ) as request:
            yield request


def _quoted(path: str) -> str:
    try:
        return quote(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as exc:
        raise BadRequest(f"no path: {exc}") from exc
