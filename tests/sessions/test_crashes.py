"""The durable store is killed at every write: what clients have seen is read back, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from kernelbroker.protocol.events import Result
from kernelbroker_server.sessions.durable_store import DurableStore

from tests.support.crashing_store import EXECUTIONS, OUTPUTS

_DEADLINE_S = 200.0
_FEWEST_POINTS = 100
"""Writes of one run, at least: if there are fewer, the faults are not where they should be."""


async def crash(directory: Path, *mode: str) -> str:
    """Run `crashing_store`. Returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.crashing_store", str(directory), *mode),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_DEADLINE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return output.decode()


async def check(directory: Path) -> int:
    """Compare what is read after the crash with what was seen. Returns the number of executions."""
    path = directory / "seen"
    facts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    seen: dict[tuple[str, str], list[str]] = {}
    entries: dict[str, str] = {}
    ended: set[str] = set()
    for kind, *fact in facts:
        match kind:
            case "begun":
                seen[fact[0], fact[1]] = []
            case "event":
                seen[fact[0], fact[1]].append(fact[2])
            case "ended":
                ended.add(fact[0])
            case _:
                entries[fact[0]] = kind
    store = DurableStore(directory / "state")
    await store.start()
    await store.end_lost()
    assert list(store.problems()) == []
    try:
        for (session_id, execution_id), texts in seen.items():
            log = await store.past_execution("t", session_id, execution_id)
            assert log is not None
            stored = log.read()
            assert [each.json.decode() for each in stored[: len(texts)]] == texts
            assert [each.event.seq for each in stored] == list(range(1, len(stored) + 1))
            results = [each.event for each in stored if isinstance(each.event, Result)]
            assert results == [stored[-1].event]
            assert len(stored) <= OUTPUTS + 2
            if (detail := results[0].error_detail) is not None:
                assert detail.cause == "sandbox_lost"
                assert "the broker ended" in detail.value
        for session_id in {session_id for session_id, _ in seen}:
            listed = [each.id for each in await store.past_executions("t", session_id)]
            assert listed == [str(number) for number in range(len(listed))]
            assert len(listed) <= EXECUTIONS
            reason = await store.closed_reason("t", session_id)
            assert reason in (("over",) if session_id in ended else ("over", "the broker ended"))
        for name, kind in entries.items():
            entry = store.entry("key", "t", name)
            if kind != "dropping":  # then nobody knows
                assert (entry is not None) == (kind == "put")
    finally:
        await store.stop()
    assert sorted(path.name for path in (directory / "state").iterdir()) == [
        "epoch",
        "lock",
        "store.sqlite3",
    ]
    return len(seen)


@pytest.mark.slow
async def test_killed_at_every_write(tmp_path: Path) -> None:
    """Killed before, in and after each write, a store has what was seen, each execution with one result."""
    points = int(await crash(tmp_path, "each"))
    assert points > _FEWEST_POINTS
    found = [await check(tmp_path / str(point)) for point in range(1, points + 1)]
    assert found[0] == 0
    assert found[-1] == EXECUTIONS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    """A store that is killed many times, also during its recovery, loses nothing that was seen."""
    await crash(tmp_path, "chain", str(seed))
    assert await check(tmp_path) > EXECUTIONS
