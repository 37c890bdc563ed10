"""Bytes from one socket to another within the system: the broker never holds them (splice(2)).

From TCP to a unix socket it takes half as long as copying. The other way it takes longer: see `pass_to`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket

_PIPE_BYTES = 1024 * 1024
"""An ordinary user may ask for as much (pipe(7), pipe-max-size)."""


_YIELD_EVERY = 16
"""Rounds after which others may run, though there is always more."""


class SourceSilent(Exception):
    """The source gave nothing for too long."""


async def splice(source: socket.socket, target: socket.socket, size: int, silence: float) -> int:
    """Move `size` bytes between two sockets that do not block; returns how many came before the end.

    A source that broke off has ended. Nobody else may wait for either of them meanwhile.

    Raises:
        SourceSilent: for `silence` seconds the source gave nothing.
        TimeoutError: for as long the target took nothing.
        OSError: the target failed.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        room = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        left, rounds = size, 0
        while left:
            try:
                moved = await _move(source.fileno(), writer, min(left, room), source, silence)
            except TimeoutError:
                raise SourceSilent from None
            except ConnectionError:
                moved = 0
            if not moved:
                break
            left -= moved
            while moved:
                moved -= await _move(reader, target.fileno(), moved, target, silence)
            rounds += 1
            if rounds % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return size - left
    finally:
        os.close(reader)
        os.close(writer)


async def _move(source: int, target: int, size: int, slow: socket.socket, silence: float) -> int:
    """One call, as soon as it moves something. The pipe is never what is waited for."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.splice(source, target, size)
        except BlockingIOError:
            ready: asyncio.Future[None] = loop.create_future()
            reads = source == slow.fileno()
            (loop.add_reader if reads else loop.add_writer)(slow, _done, ready)
            try:
                async with asyncio.timeout(silence):
                    await ready
            finally:
                (loop.remove_reader if reads else loop.remove_writer)(slow)


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
