"""The event store: events numbered and kept for every reader; sessions and executions recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.events import Result, Started, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.sessions.memory_log import MemoryLog
from kernelbroker_server.sessions.memory_store import MemoryStore
from kernelbroker_server.sessions.postgres_store import PostgresStore
from kernelbroker_server.sessions.store import Entry, EventStore, SessionRecord
from kernelbroker_server.telemetry.origin import set_origin

from tests.support.generated import repeatable
from tests.support.waiting import DEADLINE_S, turns


def filled(outputs: int) -> MemoryLog:
    log = MemoryLog("e", ExecutionRequest(code=""))
    for number in range(outputs):
        log.append(Stdout(content=str(number)))
    log.append(Result(success=True))
    return log


async def seqs(log: MemoryLog, after: int = 0) -> list[int]:
    return [entry.event.seq async for entry in log.follow(after)]


async def test_events_are_numbered_without_gaps() -> None:
    """Events are numbered from 1, with their execution's id, and their JSON is equal."""
    log = filled(3)
    entries = [entry async for entry in log.follow()]
    assert [entry.event.seq for entry in entries] == [1, 2, 3, 4]
    for entry in entries:
        written = json.loads(entry.json)
        assert (written["seq"], written["execution_id"]) == (entry.event.seq, "e")
    assert log.size == sum(len(entry.json) for entry in entries)


def test_nothing_after_the_result() -> None:
    """An event after the result is an error of the broker."""
    log = filled(0)
    with pytest.raises(RuntimeError):
        log.append(Stdout(content="late"))


@pytest.mark.parametrize(
    ("after", "expected"), [(0, [1, 2, 3]), (1, [2, 3]), (3, []), (4, []), (10**18, [])]
)
async def test_followers_get_the_events_after_a_seq(after: int, expected: list[int]) -> None:
    """A follower gets the events after its seq; beyond the end it gets none."""
    assert await seqs(filled(2), after) == expected


async def test_followers_are_independent() -> None:
    """Early, late and idle followers delay no other one, and each gets every event once."""
    log = MemoryLog("e", ExecutionRequest(code=""))
    early = asyncio.create_task(seqs(log))
    await turns(2)
    slow = log.follow()
    log.append(Stdout(content="1"))
    assert (await anext(slow)).event.seq == 1
    for _ in range(100):
        log.append(Stdout(content="x"))
    late = asyncio.create_task(seqs(log, 50))
    gone = asyncio.create_task(seqs(log))
    await turns(2)
    gone.cancel()
    await asyncio.wait([gone])
    log.append(Result(success=True))
    everything = list(range(1, 103))
    async with asyncio.timeout(DEADLINE_S):
        assert await early == everything
        assert await late == everything[50:]
        assert [entry.event.seq async for entry in slow] == everything[1:]


async def test_follower_is_woken_for_each_event() -> None:
    """A follower gets an event as soon as it is stored."""
    log = MemoryLog("e", ExecutionRequest(code=""))
    following = log.follow()
    for number in range(1, 5):
        waiting = asyncio.ensure_future(anext(following))
        await turns(3)
        assert not waiting.done()
        log.append(Stdout(content="x"))
        async with asyncio.timeout(DEADLINE_S):
            assert (await waiting).event.seq == number
    await following.aclose()  # type: ignore[attr-defined]


@repeatable
@given(st.lists(st.integers(0, 3), max_size=20), st.integers(0, 25))
def test_any_interleaving_keeps_the_order(appended: list[int], after: int) -> None:
    """If appending and following interleave, a follower gets each later event once, in order."""

    async def work() -> None:
        log = MemoryLog("e", ExecutionRequest(code=""))
        following = asyncio.create_task(seqs(log, after))
        for count in appended:
            for _ in range(count):
                log.append(Stdout(content="x"))
            await turns(1)
        log.append(Result(success=True))
        async with asyncio.timeout(DEADLINE_S):
            assert await following == list(range(after + 1, sum(appended) + 2))

    asyncio.run(work())


# The store as a contract. Another implementation is added to this list.


@pytest.fixture
def now() -> list[float]:
    """The time of the store's clock."""
    return [1000.0]


@pytest.fixture(params=["memory", "durable", "postgres"])
async def event_store(
    request: pytest.FixtureRequest, tmp_path: Path, now: list[float]
) -> AsyncIterator[EventStore]:
    store: EventStore
    if request.param == "memory":
        store = MemoryStore(100, 10_000, lambda: now[0])
    elif request.param == "postgres":
        database = request.getfixturevalue("postgres").new_database()
        store = PostgresStore(database, 100, 10_000, lambda: now[0])
    else:
        store = DurableStore(tmp_path / "state", 100, 10_000, lambda: now[0])
    await store.start()
    await store.end_lost()
    yield store
    assert list(store.problems()) == []
    await store.stop()
    await store.stop()


def record(key: str, tenant: str = "t", session_id: str = "mine") -> SessionRecord:
    return SessionRecord(key, tenant, session_id, SessionOptions(session_id=session_id))


async def test_sessions_are_recorded_by_tenant(event_store: EventStore) -> None:
    """Sessions are listed for their tenant, oldest first, until they end; one id may come again."""
    one, other, foreign = record("1"), record("2", session_id="other"), record("3", "u")
    for each in (one, other, foreign):
        event_store.record_session(each)
    assert list(event_store.sessions("t")) == [one, other]
    event_store.end_session("1", "it is over")
    event_store.end_session("1", "it is over")
    again = record("4")
    event_store.record_session(again)
    assert list(event_store.sessions("t")) == [other, again]
    assert list(event_store.sessions("u")) == [foreign]


async def test_executions_belong_to_their_session(event_store: EventStore) -> None:
    """Executions are listed by id under their session's key, internal ones nowhere."""
    event_store.record_session(record("1"))
    event_store.record_session(record("2"))
    request = ExecutionRequest(code="1")
    a, b = (event_store.create_execution("1", name, request) for name in "ab")
    event_store.create_execution(None, "internal", request)
    same_id = event_store.create_execution("2", "a", request)
    assert dict(event_store.executions("1")) == {"a": a, "b": b}
    assert dict(event_store.executions("2")) == {"a": same_id}
    assert dict(event_store.executions("unknown")) == {}
    assert (a.state, a.request, a.result) == ("queued", request, None)
    a.begin()
    assert a.state == "running"


async def test_a_log_outlives_its_session(event_store: EventStore) -> None:
    """A log that a reader holds when its session ends can be read and written to its end."""
    event_store.record_session(record("1"))
    log = event_store.create_execution("1", "a", ExecutionRequest(code="1"))
    log.append(Stdout(content="before"))
    event_store.end_session("1", "it is over")
    assert dict(event_store.executions("1")) == {}
    reading = asyncio.create_task(log.finished())
    log.append(Result(success=True))
    assert (await reading).success
    assert [stored.event.seq async for stored in log.follow()] == [1, 2]
    assert log.state == "done"


async def test_watchers_see_new_executions(event_store: EventStore) -> None:
    """A watcher gets all executions that are created later, and None when the session ends."""
    event_store.record_session(record("1"))
    request = ExecutionRequest(code="1")
    event_store.create_execution("1", "before", request)
    with event_store.watch("1") as watcher, event_store.watch("1") as left:
        log = event_store.create_execution("1", "a", request)
        assert watcher.get_nowait() is log
        assert left.get_nowait() is log
        event_store.end_session("1", "it is over")
        assert watcher.get_nowait() is None
    with event_store.watch("1") as late:
        assert late.get_nowait() is None


def ended(store: EventStore, key: str, execution_id: str, text: str = "out") -> None:
    """Run an execution to its end, as a session would."""
    log = store.create_execution(key, execution_id, ExecutionRequest(code="1"), ["pkg"])
    log.begin()
    log.append(Started())
    log.append(Stdout(content=text))
    log.append(Result(success=True, return_value=text))


async def test_ended_sessions_are_history(event_store: EventStore) -> None:
    """Executions of ended sessions are listed and read under their session's id, by their tenant only."""
    for key, text in (("1", "first"), ("2", "second")):
        event_store.record_session(record(key))
        ended(event_store, key, "same", text)
        ended(event_store, key, f"only-{key}", text)
        event_store.end_session(key, f"reason {key}")
    event_store.record_session(record("3"))
    ended(event_store, "3", "of-an-open-session")
    assert await event_store.closed_reason("t", "mine") == "reason 2"
    found = await event_store.past_executions("t", "mine")
    assert [each.id for each in found] == ["same", "only-1", "same", "only-2", "of-an-open-session"]
    found = found[:-1]
    assert {each.state for each in found} == {"done"}
    assert {each.packages for each in found} == {("pkg",)}
    results = [each.result for each in found]
    assert [r and r.return_value for r in results] == ["first", "first", "second", "second"]
    log = await event_store.past_execution("t", "mine", "same")
    assert log is not None
    texts = [stored.event for stored in log.read()]
    assert isinstance(texts[1], Stdout)
    assert texts[1].content == "second"
    assert log.request == ExecutionRequest(code="1")
    assert (log.state, await seqs(log, 1)) == ("done", [2, 3])
    assert (await log.finished()).success
    running = event_store.create_execution("3", "same", ExecutionRequest(code="2"))
    running.begin()
    assert await event_store.past_execution("t", "mine", "same") is running
    assert (await event_store.past_executions("t", "mine"))[-1].state == "running"
    for tenant, session_id, execution_id in (
        ("u", "mine", "same"),
        ("t", "other", "same"),
        ("t", "mine", "unknown"),
    ):
        assert await event_store.past_execution(tenant, session_id, execution_id) is None
    assert list(await event_store.past_executions("u", "mine")) == []
    assert await event_store.closed_reason("u", "mine") is None


async def test_ended_sessions_are_listed(event_store: EventStore, now: list[float]) -> None:
    """Ended sessions are found by any of their names, a page at a time, the latest first, per tenant."""
    set_origin("e2b", "ann")
    for number in range(5):
        now[0] += number // 3  # the first ones end at the same time
        event_store.record_session(record(str(number)))
        if number:
            ended(event_store, str(number), f"cell-{number}")
        event_store.end_session(str(number), f"reason {number}")
    event_store.record_session(record("open"))
    found, rest = await event_store.past_sessions("t")
    assert ([each.key for each in found], rest) == (["4", "3", "2", "1", "0"], None)
    latest = found[0]
    assert (latest.session_id, latest.reason, latest.executions) == ("mine", "reason 4", 1)
    assert latest.origin == ("e2b", "ann")
    assert latest.opened_at > 0
    assert latest.ended_at == now[0]
    assert latest.last is not None
    assert (latest.last.execution_id, latest.last.success) == ("cell-4", True)
    assert (latest.last.request.code, latest.last.origin.user) == ("1", "ann")
    assert (found[-1].last, found[-1].executions) == (None, 0)

    pages, place = [], None
    while len(pages) < 10:
        page = await event_store.past_sessions("t", limit=2, before=place)
        pages.append([each.key for each in page.sessions])
        if (place := page.rest) is None:
            break
    assert pages == [["4", "3"], ["2", "1"], ["0"]]
    for text, keys in (("REASON 2", ["2"]), ("ANN", ["4", "3", "2", "1", "0"]), ("absent", [])):
        assert [each.key for each in (await event_store.past_sessions("t", text)).sessions] == keys
    assert (await event_store.past_sessions("u")).sessions == []
    now[0] += 1000
    assert (await event_store.past_sessions("t")).sessions == []


async def test_history_ends_with_its_retention(event_store: EventStore, now: list[float]) -> None:
    """History is kept for the retention after the end of its session."""
    event_store.record_session(record("1"))
    ended(event_store, "1", "a")
    now[0] += 1000
    event_store.end_session("1", "over")
    now[0] += 99
    assert await event_store.past_execution("t", "mine", "a") is not None
    now[0] += 2
    assert await event_store.past_execution("t", "mine", "a") is None
    assert list(await event_store.past_executions("t", "mine")) == []
    assert await event_store.closed_reason("t", "mine") is None


async def test_any_text_can_be_stored(event_store: EventStore) -> None:
    """Text that is not Unicode, as user code can print it, is read as it was stored."""
    event_store.record_session(record("1"))
    ended(event_store, "1", "a", "\udcff\0 \U0001f600")
    event_store.end_session("1", "reason \udcff")
    log = await event_store.past_execution("t", "mine", "a")
    assert log is not None
    assert log.result is not None
    assert log.result.return_value == "\udcff\0 \U0001f600"


async def test_entries_end_in_time(event_store: EventStore, now: list[float]) -> None:
    """An entry is found by kind, tenant and name until it is replaced or dropped, or its time is over."""
    entry = Entry("kind", "t", "name", b"value", 1010.0)
    event_store.put_entry(entry)
    assert event_store.entry("kind", "t", "name") == entry
    for other in (("other", "t", "name"), ("kind", "u", "name"), ("kind", "t", "other")):
        assert event_store.entry(*other) is None
        event_store.drop_entry(*other)
    later = Entry("kind", "t", "name", b"later", 1020.0)
    event_store.put_entry(later)
    now[0] = 1015.0
    assert event_store.entry("kind", "t", "name") == later
    event_store.drop_entry("kind", "t", "name")
    assert event_store.entry("kind", "t", "name") is None
    event_store.put_entry(later)
    now[0] = 1020.0
    assert event_store.entry("kind", "t", "name") is None
