"""Reading and writing descriptors that do not block, without threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

READ_BYTES = 32 * 1024


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What can be read, until the other end is closed."""
    while True:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            await wait_until_ready(descriptor)
            continue
        except OSError:  # EIO: the last process of a terminal has closed it
            return
        if not data:
            return
        yield data


async def wait_until_ready(
    descriptor: int, *, writing: bool = False, or_else: asyncio.Event | None = None
) -> None:
    """Wait until the descriptor can be read, or written, or until the event."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    add, remove = (
        (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    )
    add(descriptor, ready.set)
    try:
        if or_else is None:
            await ready.wait()
            return
        waits = [asyncio.create_task(ready.wait()), asyncio.create_task(or_else.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
    finally:
        remove(descriptor)
