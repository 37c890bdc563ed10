"""Bytes from socket to socket: all of them, in order, and an end to every wait."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
from collections.abc import Iterator

import pytest
from kernelbroker_server.kernels.splice import SourceSilent, splice

from tests.support.waiting import DEADLINE_S


class Ends:
    """Two pairs: what is written to `giver` is spliced from `source`, and read from `taker`."""

    def __init__(self) -> None:
        self.giver, self.source = socket.socketpair()
        self.target, self.taker = socket.socketpair()
        for end in self.all:
            end.setblocking(False)

    @property
    def all(self) -> list[socket.socket]:
        return [self.giver, self.source, self.target, self.taker]

    async def take(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        taken = bytearray()
        while len(taken) < size and (data := await loop.sock_recv(self.taker, 65_536)):
            taken += data
        return bytes(taken)


@pytest.fixture
def ends() -> Iterator[Ends]:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    ends = Ends()
    yield ends
    for end in ends.all:
        end.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
async def test_all_of_it(ends: Ends, size: int) -> None:
    """So many bytes arrive, as they were, and what follows them stays where it is."""
    content = os.urandom(size)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(loop.sock_sendall(ends.giver, content + b"more"))
        taken = group.create_task(ends.take(size))
        assert await splice(ends.source, ends.target, size, DEADLINE_S) == size
    assert taken.result() == content
    assert await loop.sock_recv(ends.source, 10) == b"more"


async def test_a_source_that_ends(ends: Ends) -> None:
    """What came is passed on, and the count tells that it was not all."""
    ends.giver.send(b"short")
    ends.giver.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(DEADLINE_S):
        assert await splice(ends.source, ends.target, 100, DEADLINE_S) == 5
    assert await ends.take(5) == b"short"


async def test_a_source_that_breaks_off(ends: Ends) -> None:
    """A connection that was reset has ended, as one that was closed."""
    ends.source.send(b"never read")
    ends.giver.close()
    async with asyncio.timeout(DEADLINE_S):
        assert await splice(ends.source, ends.target, 100, DEADLINE_S) == 0


async def test_silence(ends: Ends) -> None:
    """Neither a source that gives nothing nor a target that takes nothing is waited for for ever."""
    with pytest.raises(SourceSilent):
        await splice(ends.source, ends.target, 1, 0.01)
    feeding = asyncio.create_task(
        asyncio.get_running_loop().sock_sendall(ends.giver, bytes(5_000_000))
    )
    with pytest.raises(TimeoutError):
        await splice(ends.source, ends.target, 5_000_000, 0.05)
    feeding.cancel()
    await asyncio.wait([feeding])


async def test_a_target_that_has_gone(ends: Ends) -> None:
    """It is an error of the system's."""
    ends.taker.close()
    ends.giver.send(b"x")
    with pytest.raises(OSError):
        await splice(ends.source, ends.target, 1, DEADLINE_S)


async def test_a_target_that_speaks(ends: Ends) -> None:
    """Who waits for the source hears at once that the target answers, or hangs up."""
    for act in (lambda: ends.taker.send(b"no more"), ends.taker.close):
        splicing = asyncio.create_task(splice(ends.source, ends.target, 10, DEADLINE_S))
        await asyncio.sleep(0)
        act()
        with pytest.raises(BrokenPipeError):
            await asyncio.wait_for(splicing, DEADLINE_S / 2)


async def test_no_larger_pipe(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this user's pipes are too large already, a pipe as it is made will do."""

    def refuse(descriptor: int, command: int, *arguments: int) -> int:
        if command == fcntl.F_SETPIPE_SZ:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return fcntl_of_the_system(descriptor, command, *arguments)

    fcntl_of_the_system = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    content = os.urandom(300_000)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(asyncio.get_running_loop().sock_sendall(ends.giver, content))
        taken = group.create_task(ends.take(len(content)))
        assert await splice(ends.source, ends.target, len(content), DEADLINE_S) == len(content)
    assert taken.result() == content


async def test_cancelled(ends: Ends) -> None:
    """A wait that is given up leaves neither a pipe nor somebody who listens."""
    splicing = asyncio.create_task(splice(ends.source, ends.target, 1, DEADLINE_S))
    await asyncio.sleep(0)
    splicing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await splicing
    assert not asyncio.get_running_loop().remove_reader(ends.source)
