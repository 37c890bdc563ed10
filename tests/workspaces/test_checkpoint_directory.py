"""The store of checkpoints: whole or absent, bounded, and separate for each tenant."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from kernelbroker.protocol.errors import NotFound, TooLarge, Unavailable
from kernelbroker.protocol.messages import CheckpointInfo, SavedVariable
from kernelbroker_server.workspaces.checkpoint_directory import DirectoryCheckpoints
from kernelbroker_server.workspaces.checkpoint_store import CheckpointLimits


def info(name: str, day: int = 1) -> CheckpointInfo:
    return CheckpointInfo(
        name=name,
        mode="values",
        size=0,
        created_at=datetime(2026, 11, day, tzinfo=UTC),
        session_id="s",
        template="default",
        python="3.11.7",
        complete=True,
        variables=[SavedVariable(name="x", type="int", size=4, form="pickle")],
    )


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for chunk in data:
        yield chunk


async def broken(*data: bytes) -> AsyncIterator[bytes]:
    for chunk in data:
        yield chunk
    raise ConnectionResetError("the sandbox ended")


async def content(store: DirectoryCheckpoints, name: str, tenant: str = "a") -> bytes:
    async with store.open(tenant, name) as (size, found):
        data = b"".join([chunk async for chunk in found])
    assert size == len(data)
    return data


def files(path: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def store(path: Path) -> DirectoryCheckpoints:
    limits = CheckpointLimits(size=1000, total_size=1500, count=3, retention=100)
    return DirectoryCheckpoints(path, limits)


async def test_save_read_replace_delete(store: DirectoryCheckpoints, path: Path) -> None:
    """A checkpoint is read as it was saved; a later one of the same name replaces it and its file."""
    saved = await store.save("a", info("one"), chunks(b"x" * 600, b"y"))
    assert saved.size == 601 and saved.expires_at is not None
    assert await content(store, "one") == b"x" * 600 + b"y"
    assert await DirectoryCheckpoints(path).get("a", "one") == saved
    await store.save("a", info("one", 2), chunks(b"new"))
    await store.save("a", info("older"), chunks(b""))
    assert await content(store, "one") == b"new"
    assert [each.name for each in await store.list("a")] == ["older", "one"]
    assert files(path) == 4
    await store.delete("a", "one")
    await store.delete("a", "older")
    assert files(path) == 0
    for call in (store.get("a", "one"), store.delete("a", "one"), content(store, "one")):
        with pytest.raises(NotFound, match="no checkpoint one"):
            await call


async def test_a_reader_keeps_what_it_opened(store: DirectoryCheckpoints) -> None:
    """A checkpoint that is replaced while it is read is read to its end."""
    await store.save("a", info("one"), chunks(b"first"))
    async with store.open("a", "one") as (_, found):
        await store.save("a", info("one"), chunks(b"second"))
        assert b"".join([chunk async for chunk in found]) == b"first"


async def test_a_save_that_breaks_off_changes_nothing(
    store: DirectoryCheckpoints, path: Path
) -> None:
    """The earlier checkpoint stays, and no file is left."""
    await store.save("a", info("one"), chunks(b"whole"))
    with pytest.raises((ConnectionResetError, Unavailable)):
        await store.save("a", info("one"), broken(b"half"))
    assert await content(store, "one") == b"whole"
    assert files(path) == 2


async def test_tenants_are_separate(store: DirectoryCheckpoints) -> None:
    """A tenant neither sees nor fills the checkpoints of another one."""
    await store.save("a", info("one"), chunks(b"x" * 1000))
    await store.save("b", info("one"), chunks(b"y" * 1000))
    assert await content(store, "one", "b") == b"y" * 1000
    await store.delete("b", "one")
    assert await store.list("b") == []
    assert len(await store.list("a")) == 1


async def test_limits(store: DirectoryCheckpoints, path: Path) -> None:
    """Too large a checkpoint, too much in all, and too many are refused with what to do."""
    with pytest.raises(TooLarge, match="at most 1,000 bytes: delete variables"):
        await store.save("a", info("one"), chunks(b"x" * 800, b"x" * 300))
    await store.save("a", info("one"), chunks(b"x" * 900))
    with pytest.raises(TooLarge, match="1,500 bytes together: delete one"):
        await store.save("a", info("two"), chunks(b"x" * 700))
    await store.save("a", info("one"), chunks(b"x" * 1000))  # its own place counts once
    await store.save("a", info("two"), chunks(b""))
    await store.save("a", info("three"), chunks(b""))
    with pytest.raises(TooLarge, match="you have 3 checkpoints"):
        await store.save("a", info("four"), chunks(b""))
    assert files(path) == 6


async def test_what_expired_or_was_left_is_removed(store: DirectoryCheckpoints, path: Path) -> None:
    """Expired checkpoints and old nameless files go, unless a damaged description may name them."""
    await store.save("a", info("old"), chunks(b"x"))
    await store.save("a", info("kept"), chunks(b"x"))
    await store.save("a", info(".fork-1"), chunks(b"x"), retention=-1)
    (directory,) = await asyncio.to_thread(lambda: list(path.iterdir()))
    description = directory / "old.json"
    record = msgspec.json.decode(description.read_bytes())
    description.write_bytes(msgspec.json.encode(record | {"until": 1.0}))
    damaged = directory / "damaged.json"
    damaged.write_bytes(b"{")
    for name in ("left.data", "fresh.data"):
        (directory / name).write_bytes(b"x")
    os.utime(directory / "left.data", (1, 1))
    with pytest.raises(NotFound):
        await store.get("a", "old")
    await store.reap()
    assert [each.name for each in await store.list("a")] == ["kept"]
    assert [str(damaged) in each for each in store.problems] == [True]
    assert (directory / "left.data").exists()
    damaged.unlink()
    await store.reap()
    assert not store.problems
    kept = {each.name for each in directory.iterdir() if each.suffix == ".data"}
    assert len(kept) == 2 and "fresh.data" in kept
    assert not description.exists()


async def test_a_full_disk(path: Path) -> None:
    """An error of the disk is reported as one that may pass."""
    os.mknod(path)
    with pytest.raises(Unavailable, match="cannot be stored"):
        await DirectoryCheckpoints(path).save("a", info("one"), chunks(b"x"))
