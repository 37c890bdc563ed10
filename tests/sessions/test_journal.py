"""Events numbered and kept, for followers early, late and slow."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.events import Result, Stdout
from kernelbroker_server.sessions.journal import Journal

from tests.support.generated import repeatable
from tests.support.waiting import DEADLINE_S, turns


def filled(outputs: int) -> Journal:
    journal = Journal("e")
    for number in range(outputs):
        journal.append(Stdout(content=str(number)))
    journal.append(Result(success=True))
    return journal


async def seqs(journal: Journal, after: int = 0) -> list[int]:
    return [entry.event.seq async for entry in journal.follow(after)]


async def test_numbered_without_gaps() -> None:
    """Events are numbered from 1, carry their execution's id, and their JSON says the same."""
    journal = filled(3)
    entries = [entry async for entry in journal.follow()]
    assert [entry.event.seq for entry in entries] == [1, 2, 3, 4]
    for entry in entries:
        written = json.loads(entry.json)
        assert (written["seq"], written["execution_id"]) == (entry.event.seq, "e")
    assert journal.size == sum(len(entry.json) for entry in entries)


def test_nothing_after_the_result() -> None:
    """An event after the result is a fault of the broker's own."""
    journal = filled(0)
    with pytest.raises(RuntimeError):
        journal.append(Stdout(content="late"))


@pytest.mark.parametrize(
    ("after", "expected"), [(0, [1, 2, 3]), (1, [2, 3]), (3, []), (4, []), (10**18, [])]
)
async def test_after(after: int, expected: list[int]) -> None:
    """A follower gets what comes after the seq that it saw; from beyond the end, nothing."""
    assert await seqs(filled(2), after) == expected


async def test_followers_are_independent() -> None:
    """Followers who come early, late or not at all hold up nobody, and each gets everything once."""
    journal = Journal("e")
    early = asyncio.create_task(seqs(journal))
    await turns(2)
    slow = journal.follow()
    journal.append(Stdout(content="1"))
    assert (await anext(slow)).event.seq == 1
    for _ in range(100):
        journal.append(Stdout(content="x"))
    late = asyncio.create_task(seqs(journal, 50))
    gone = asyncio.create_task(seqs(journal))
    await turns(2)
    gone.cancel()
    await asyncio.wait([gone])
    journal.append(Result(success=True))
    everything = list(range(1, 103))
    async with asyncio.timeout(DEADLINE_S):
        assert await early == everything
        assert await late == everything[50:]
        assert [entry.event.seq async for entry in slow] == everything[1:]


async def test_follower_is_woken_for_each_event() -> None:
    """A follower sees an event as soon as it is there, not only with the next."""
    journal = Journal("e")
    following = journal.follow()
    for number in range(1, 5):
        waiting = asyncio.ensure_future(anext(following))
        await turns(3)
        assert not waiting.done()
        journal.append(Stdout(content="x"))
        async with asyncio.timeout(DEADLINE_S):
            assert (await waiting).event.seq == number
    await following.aclose()  # type: ignore[attr-defined]


@repeatable
@given(st.lists(st.integers(0, 3), max_size=20), st.integers(0, 25))
def test_any_interleaving(appended: list[int], after: int) -> None:
    """However appending and following interleave, a follower sees each later event once, in order."""

    async def work() -> None:
        journal = Journal("e")
        following = asyncio.create_task(seqs(journal, after))
        for count in appended:
            for _ in range(count):
                journal.append(Stdout(content="x"))
            await turns(1)
        journal.append(Result(success=True))
        async with asyncio.timeout(DEADLINE_S):
            assert await following == list(range(after + 1, sum(appended) + 2))

    asyncio.run(work())
