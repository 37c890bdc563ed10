"""A session's files, as `session.files`.

    await session.files.write("in.csv", "a,b\\n1,2\\n")
    await session.files.upload("large.parquet", "large.parquet", progress=print)
    for file in await session.files.list(recursive=True):
        print(file.path, file.size)
    await session.files.download("plot.png", "plot.png")

Paths are relative to the workspace, `/data`. Files can be moved while a cell runs; each way they are
streamed, and none appears before it is whole. Any await may be cancelled; nothing half-made stays.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from .discovery import Address
from .protocol.codec import decode_as
from .protocol.errors import BadRequest, ConnectionLost, ProtocolError
from .protocol.messages import FileInfo, FileList
from .transfer import CHUNK, Transfer

T = TypeVar("T", bound=bytes | int)
Progress: TypeAlias = Callable[[int, int | None], Any]
"""Gets the bytes done and the bytes in all (None where that is not known); it may be async."""
Data: TypeAlias = bytes | str | IO[bytes] | AsyncIterable[bytes]


class Listing(list[FileInfo]):
    """The entries, by path. `truncated` says that there are more than the broker lists (10,000)."""

    truncated = False


class Files:
    """The workspace of one session, which opens with the first call.

    All calls raise `RequestError` where the broker refuses: `NotFound`, `Conflict` (a directory where a
    file is meant, a link, a read-only place), `TooLarge`, `BadRequest` (a path out of the workspace),
    `SessionGone`; and `ConnectionFailed` or `ConnectionLost` where it cannot be reached (any more).

    Args:
        opened: makes sure that the session is open, and tells its path at the broker.
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
        """A file's content, all of it in memory; `download` streams to a file instead."""
        return b"".join([piece async for piece in self.stream(path)])

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return (await self.read(path)).decode(encoding)

    async def stream(
        self, path: str, progress: Progress | None = None
    ) -> AsyncGenerator[bytes, None]:
        """A file's content, piece by piece. Raises ConnectionLost where less comes than there is."""
        async with (
            self._asked("GET", path) as transfer,
            aclosing(_taken(transfer, transfer.read, progress)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def write(self, path: str, data: Data) -> None:
        """Make or replace a file, and the directories above it. Text is written as UTF-8."""
        if isinstance(data, str):
            data = data.encode()
        length = len(data) if isinstance(data, bytes) else None
        await self._send(path, data, length, None)

    async def upload(
        self,
        local: str | os.PathLike[str],
        remote: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Copy a local file into the workspace, under its own name if `remote` is not given.

        A pipe or a device is read to its end; of a file that grows meanwhile comes what it had at first.

        Raises: OSError as well, where it cannot be read.
        """
        source = Path(local)
        with await asyncio.to_thread(source.open, "rb") as file:
            found = os.fstat(file.fileno())
            # What has no size, or none to be trusted (as in /proc), is sent piece by piece to its end.
            length = found.st_size if stat.S_ISREG(found.st_mode) and found.st_size else None
            await self._send(remote or source.name, file, length, progress)

    async def download(
        self, remote: str, local: str | os.PathLike[str], progress: Progress | None = None
    ) -> None:
        """Copy a file of the workspace to a local one, which appears, or is replaced, when it is whole.

        A link is followed. What is there and is no file, such as a pipe, is written to as it comes.

        Raises: OSError as well, where it cannot be written.
        """
        target = await asyncio.to_thread(_file_at, local)
        if target is None:
            await self._receive(remote, Path(local), "wb", progress)
            return
        partial = target.with_name(f".{token_hex(8)}.part")
        try:
            await self._receive(remote, partial, "xb", progress)
            await asyncio.to_thread(partial.replace, target)
        finally:
            partial.unlink(missing_ok=True)

    async def list(self, path: str = ".", recursive: bool = False) -> Listing:
        """What is in a directory, by path; of anything else its own entry."""
        query = f"?path={_quoted(path)}&recursive={str(recursive).lower()}"
        async with self._asked("GET", None, query) as transfer:
            await transfer.begin()
            await transfer.answer()
            body = await transfer.read_all()
        try:
            found = decode_as(body, FileList)
        except ProtocolError as exc:
            raise self._address.unreachable(exc) from exc
        listing = Listing(found.entries)
        listing.truncated = found.truncated
        return listing

    async def exists(self, path: str) -> bool:
        """Whether there is something at `path`, of whatever kind."""
        async with self._asked("HEAD", path) as transfer:
            await transfer.begin()
            status = await transfer.answer(refused=False)
        if status in (200, 404, 409):
            return status != 404
        await self.list(path)  # the same question, whose answer says what is wrong
        return True

    async def delete(self, path: str, recursive: bool = False) -> None:
        """Remove a file, a link, or an empty directory; with `recursive` any directory."""
        await self._call("DELETE", path, "?recursive=true" if recursive else "")

    async def move(self, source: str, target: str) -> None:
        """Rename a file or a directory; a file at `target` is replaced."""
        await self._call("POST", source, f"?op=move&to={_quoted(target)}")

    async def mkdir(self, path: str) -> None:
        """Make a directory, and those above it; one that is there already will do."""
        await self._call("POST", path, "?op=mkdir")

    async def _send(
        self, path: str, data: Data, length: int | None, progress: Progress | None
    ) -> None:
        async with self._asked("PUT", path) as transfer:
            head = {} if length is None else {"Content-Length": str(length)}
            await transfer.begin(head, chunked=length is None)
            done = 0
            async with aclosing(_given(transfer, data, length)) as sizes:
                async for size in sizes:
                    done += size
                    if transfer.is_deaf:
                        break
                    await _tell(progress, done, length)
            if length not in (None, done) and not transfer.is_deaf:
                raise OSError(f"the file for {path} became shorter while it was read")
            await transfer.answer()

    async def _receive(
        self, remote: str, target: Path, mode: Literal["wb", "xb"], progress: Progress | None
    ) -> None:
        async with self._asked("GET", remote) as transfer:
            with await asyncio.to_thread(target.open, mode, 0) as file:
                async for _ in _taken(transfer, lambda: transfer.save(file), progress):
                    pass

    async def _call(self, method: str, path: str, query: str) -> None:
        async with self._asked(method, path, query) as transfer:
            await transfer.begin({"Content-Length": "0"})
            await transfer.answer()

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str | None, query: str = ""
    ) -> AsyncGenerator[Transfer, None]:
        where = ("" if path is None else f"/{_quoted(path)}") + query
        base = await self._opened()
        async with Transfer(
            self._address, method, f"{base}/files{where}", self._timeout
        ) as transfer:
            yield transfer


def _quoted(path: str) -> str:
    try:
        return quote(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as exc:
        raise BadRequest(f"no path: {exc}") from exc


def _file_at(path: str | os.PathLike[str]) -> Path | None:
    """The file to make or replace there; None where there is something else to be written to."""
    target = Path(os.path.realpath(path))  # nobody's link becomes a file, such as /dev/stdout
    is_stream = Path(path).exists() and not Path(path).is_file()
    return None if is_stream else target


async def _given(transfer: Transfer, data: Data, length: int | None) -> AsyncGenerator[int, None]:
    """Send the data, of a file no more than `length` bytes, and tell the size of each piece."""
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, bytes):
        for begin in range(0, len(data), CHUNK):
            yield await transfer.send(data[begin : begin + CHUNK])
    elif isinstance(data, AsyncIterable):
        async for piece in data:
            yield await transfer.send(piece)
    else:
        file, left = data, length
        while left != 0 and (size := await transfer.send_file(file, left)):
            left = None if left is None else left - size
            yield size


async def _taken(
    transfer: Transfer, take: Callable[[], Awaitable[T]], progress: Progress | None
) -> AsyncGenerator[T, None]:
    """Ask for the file, and `take` its pieces, until all of it is there."""
    await transfer.begin()
    await transfer.answer()
    done, total = 0, int(transfer.headers.get("Content-Length", 0))
    while piece := await take():
        done += piece if isinstance(piece, int) else len(piece)
        yield piece
        await _tell(progress, done, total)
    if done < total:
        raise ConnectionLost(f"the download broke off after {done:,} of {total:,} bytes")


async def _tell(progress: Progress | None, done: int, total: int | None) -> None:
    if progress is not None:
        answer = progress(done, total)
        if inspect.isawaitable(answer):
            await answer
