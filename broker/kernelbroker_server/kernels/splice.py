"""Bytes from one socket to another within the system: the broker never holds them (splice(2)).

From TCP to a unix socket it takes half as long as copying. The other way it takes longer: see `pass_to`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket

_PIPE_BYTES = 1024 * 1024
"""An ordinary user may ask for as much (pipe(7), pipe-max-size), until all pipes of the user together
have 64 MiB: those of other uploads, and of user code where sandboxes have the broker's user."""
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
        OSError: the target failed; BrokenPipeError where, while the source is waited for, the target
            says something or hangs up: it takes no more.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
        left, rounds = size, 0
        while left and (moved := await _pull(source, writer, min(left, room), target, silence)):
            left -= moved
            while moved:
                moved -= await _push(reader, target, moved, silence)
            rounds += 1
            if rounds % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return size - left
    finally:
        os.close(reader)
        os.close(writer)


async def _pull(
    source: socket.socket, writer: int, size: int, target: socket.socket, silence: float
) -> int:
    """Into the pipe, which is empty, as soon as there is something; 0 at the source's end."""
    while True:
        try:
            return os.splice(source.fileno(), writer, size)
        except BlockingIOError:
            try:
                ready = await _ready(silence, reading=(source, target))
            except TimeoutError:
                raise SourceSilent from None
            if ready is target:
                raise BrokenPipeError(errno.EPIPE, "it hung up, or has answered") from None
        except (ConnectionError, TimeoutError):
            return 0


async def _push(reader: int, target: socket.socket, size: int, silence: float) -> int:
    """Out of the pipe, as soon as there is room."""
    while True:
        try:
            return os.splice(reader, target.fileno(), size)
        except BlockingIOError:
            await _ready(silence, writing=(target,))


async def _ready(
    silence: float,
    reading: tuple[socket.socket, ...] = (),
    writing: tuple[socket.socket, ...] = (),
) -> socket.socket:
    """The first that is ready. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[socket.socket] = loop.create_future()
    try:
        for each in reading:
            loop.add_reader(each, _done, ready, each)
        for each in writing:
            loop.add_writer(each, _done, ready, each)
        async with asyncio.timeout(silence):
            return await ready
    finally:
        for each in reading:
            loop.remove_reader(each)
        for each in writing:
            loop.remove_writer(each)


def _done(ready: asyncio.Future[socket.socket], which: socket.socket) -> None:
    if not ready.done():
        ready.set_result(which)
