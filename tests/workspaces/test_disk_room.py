"""The disk of the workspaces: sandboxes leave room on it, and the broker has a reserve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kernelbroker_server.workspaces import disk_room
from kernelbroker_server.workspaces.disk_room import RESERVE, Disk, DiskRoom, kept_of

from tests.support.waiting import until

MIB = 2**20


class FakeDisk:
    def __init__(self, free: int, total: int = 1000 * MIB) -> None:
        self.free, self.total = free, total

    def look(self, directory: Path) -> Disk:
        return Disk(self.total, self.free - held_in(directory))


def held_in(directory: Path) -> int:
    """The size of the reserve."""
    try:
        return (directory / RESERVE).stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.asynccontextmanager
async def watched(directory: Path, disk: FakeDisk, kept: int) -> AsyncIterator[DiskRoom]:
    room = DiskRoom(directory, kept, look=disk.look)
    task = asyncio.create_task(room.run())
    try:
        yield room
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_room, "_OFTEN_S", 0.01)
    monkeypatch.setattr(disk_room, "_SELDOM_S", 0.01)


async def test_it_tells_when_room_is_short_and_when_there_is_room(tmp_path: Path) -> None:
    """Listeners hear each change once; there is room again only when clearly more is free."""
    disk, told = FakeDisk(500 * MIB), []
    async with watched(tmp_path, disk, 40 * MIB) as room:
        room.listeners.add(lambda: told.append(room.is_short))
        reserve = tmp_path / RESERVE
        await until(lambda: reserve.exists() and reserve.stat().st_size == 20 * MIB, "the reserve")
        disk.free = 44 * MIB
        await until(lambda: room.is_short, "too little room")
        disk.free = 62 * MIB  # of which the reserve takes 20
        await asyncio.sleep(0.1)
        assert room.is_short
        disk.free = 100 * MIB
        await until(lambda: not room.is_short, "room again")
    assert told == [True, False]


async def test_the_reserve_is_given_up_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part by part, the last when who filled the disk has been stopped; with room it is made again."""
    monkeypatch.setattr(disk_room, "_WRITERS_S", 0.3)
    disk = FakeDisk(500 * MIB)

    def held() -> int:
        return held_in(tmp_path)

    async with watched(tmp_path, disk, 40 * MIB) as room:
        await until(lambda: held() == 20 * MIB, "the reserve")
        disk.free = 20 * MIB
        await until(lambda: held() == 10 * MIB, "parts of it given up")
        await until(lambda: room.is_short, "too little room")
        await asyncio.sleep(0.1)
        assert held() == 10 * MIB, "there are 10 MiB"
        disk.free = 5 * MIB  # whoever filled the disk wrote on
        await until(lambda: held() == 5 * MIB, "the next parts")
        await asyncio.sleep(0.1)
        assert held() == 5 * MIB, "it may still write"
        await until(lambda: held() == 0, "the rest")
        await asyncio.sleep(0.1)
        assert held() == 0
        disk.free = 400 * MIB
        await until(lambda: held() == 20 * MIB, "the reserve again")


async def test_a_disk_that_is_not_there_is_short_of_nothing(tmp_path: Path) -> None:
    """A directory that cannot be looked at does not end the watch."""
    directory = tmp_path / "data"
    room = DiskRoom(directory, 1)
    task = asyncio.create_task(room.run())
    await asyncio.sleep(0.05)
    assert not (task.done() or room.is_short)
    directory.mkdir()
    await until((directory / RESERVE).exists, "the reserve")
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("total", "kept", "expected"),
    [(1000 * MIB, 512 * MIB, 50 * MIB), (10**12, 512 * MIB, 512 * MIB)],
)
def test_a_small_disk_keeps_less(total: int, kept: int, expected: int) -> None:
    assert kept_of(Disk(total, 0), kept) == expected


async def test_nothing_is_watched_without_a_reserve(tmp_path: Path) -> None:
    disk = FakeDisk(0)
    async with watched(tmp_path, disk, 0) as room:
        await asyncio.sleep(0.05)
        assert not (room.is_short or (tmp_path / RESERVE).exists())
