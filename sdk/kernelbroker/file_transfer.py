"""Files that are sent to and received from the broker, piece by piece."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Literal, TypeAlias, TypeVar

from .http_request import CHUNK, HTTPRequest
from .protocol.errors import ConnectionLost

T = TypeVar("T", bound=bytes | int)
Progress: TypeAlias = Callable[[int, int | None], Any]
"""Called with the bytes done and the bytes in all (None if not known); may be a coroutine function."""
Data: TypeAlias = bytes | str | IO[bytes] | AsyncIterable[bytes]
Request: TypeAlias = AbstractAsyncContextManager[HTTPRequest]


async def upload(
    request: Request, path: str, data: Data, length: int | None, progress: Progress | None
) -> None:
    """Send `data` as the body of a request; of a file at most `length` bytes, if given."""
    async with request as sending:
        head = {} if length is None else {"Content-Length": str(length)}
        await sending.begin(head, chunked=length is None)
        done = 0
        async with aclosing(_send(sending, data, length)) as sizes:
            async for size in sizes:
                done += size
                if sending.was_answered_early:
                    break
                await _report(progress, done, length)
        if length not in (None, done) and not sending.was_answered_early:
            raise OSError(f"the file for {path} became shorter while it was read")
        await sending.answer()


async def download(
    request: Request, local: str | os.PathLike[str], progress: Progress | None
) -> None:
    """Write the answer of a request to a local file, which appears or is replaced when it is whole.

    A link is followed. A pipe or a device is written to as the data arrives.
    """
    target = await asyncio.to_thread(_regular_file, local)
    if target is None:
        await _receive_into(request, Path(local), "wb", progress)
        return
    partial = target.with_name(f".{token_hex(8)}.part")
    try:
        await _receive_into(request, partial, "xb", progress)
        await asyncio.to_thread(partial.replace, target)
    finally:
        partial.unlink(missing_ok=True)


async def pieces(request: Request, progress: Progress | None) -> AsyncGenerator[bytes, None]:
    """The answer of a request, piece by piece."""
    async with (
        request as receiving,
        aclosing(_received(receiving, receiving.read, progress)) as received,
    ):
        async for piece in received:
            yield piece


async def _receive_into(
    request: Request, target: Path, mode: Literal["wb", "xb"], progress: Progress | None
) -> None:
    async with request as receiving:
        with await asyncio.to_thread(target.open, mode, 0) as file:
            async for _ in _received(receiving, lambda: receiving.save(file), progress):
                pass


async def _send(request: HTTPRequest, data: Data, length: int | None) -> AsyncGenerator[int, None]:
    """Send the data and yield the size of each piece."""
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, bytes):
        for begin in range(0, len(data), CHUNK):
            yield await request.send(data[begin : begin + CHUNK])
    elif isinstance(data, AsyncIterable):
        async for piece in data:
            yield await request.send(piece)
    else:
        file, left = data, length
        while left != 0 and (size := await request.send_file(file, left)):
            left = None if left is None else left - size
            yield size


async def _received(
    request: HTTPRequest, take: Callable[[], Awaitable[T]], progress: Progress | None
) -> AsyncGenerator[T, None]:
    """Send the request, and `take` pieces of its answer until the whole of it is there."""
    await request.begin()
    await request.answer()
    announced = request.headers.get("Content-Length")
    done, total = 0, None if announced is None else int(announced)
    while piece := await take():
        done += piece if isinstance(piece, int) else len(piece)
        yield piece
        await _report(progress, done, total)
    if total is not None and done < total:
        raise ConnectionLost(
            f"the download broke off after {done:,} of {total:,} bytes: try it again"
        )


async def _report(progress: Progress | None, done: int, total: int | None) -> None:
    if progress is not None:
        answer = progress(done, total)
        if inspect.isawaitable(answer):
            await answer


def _regular_file(path: str | os.PathLike[str]) -> Path | None:
    """The file to make or replace there; None if something else is there, to be written to."""
    target = Path(os.path.realpath(path))  # A link such as /dev/stdout is not replaced by a file.
    is_stream = Path(path).exists() and not Path(path).is_file()
    return None if is_stream else target
