"""PostgreSQL: a silent server is not awaited for ever, and a long search delays no commit."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.events import Result, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker_server.sessions import postgres_store
from kernelbroker_server.sessions.postgres_connection import connect
from kernelbroker_server.sessions.postgres_log import PostgresLog
from kernelbroker_server.sessions.postgres_store import PostgresStore
from kernelbroker_server.sessions.store import SessionRecord

from tests.support.postgres import Server, relay
from tests.support.waiting import until


def test_a_silent_server(postgres: Server) -> None:
    """A connection whose server does not answer fails, and is closed."""
    with relay(postgres) as network:
        connection = connect(network.url(postgres.new_database()), "test", patience=0.5)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        network.silence()
        begun = time.monotonic()
        with pytest.raises(psycopg.OperationalError, match=r"within 0\.5 s"):
            connection.execute("SELECT 2")
        assert 0.4 < time.monotonic() - begun < 5
        assert connection.closed


def test_a_slow_transaction(postgres: Server) -> None:
    """So does a statement that takes too long; its transaction has no effect."""
    url = postgres.new_database()
    with connect(url, "test", patience=0.5) as connection:
        connection.execute("CREATE TABLE numbers (n int)")
        with pytest.raises(psycopg.OperationalError, match="answer"), connection.transaction():
            connection.execute("INSERT INTO numbers VALUES (1)")
            connection.execute("SELECT pg_sleep(60)")
    with connect(url, "test", patience=10) as later:
        assert later.execute("SELECT count(*) FROM numbers").fetchone() == (0,)


async def test_messages_are_forgotten_when_their_effect_is_committed() -> None:
    """Also if nothing more comes of the kernel, which a gateway holds back that may forget nothing."""
    commits, forgotten = postgres_store._Commits(asyncio.get_running_loop()), list[int]()

    def record(_: object) -> bool:
        commits.last += 1
        return True

    log = PostgresLog(1, record, commits, "e", ExecutionRequest(code="1"))
    begun = commits.last
    for received in (10, 20):
        log.proceed(SessionOptions(), received, forgotten.append)
    assert forgotten == []
    commits.committed(begun + 1)
    assert forgotten == [10]
    commits.committed(1)
    assert forgotten == [10, 20]


async def test_what_goes_on_elsewhere_has_no_end(postgres: Server) -> None:
    """A broker that does not have an execution tells no end of it before it has one."""
    url = postgres.new_database()
    mine, other = PostgresStore(url), PostgresStore(url)
    await mine.start()
    await other.start()
    try:
        for name in ("goes on", "is closed"):
            mine.record_session(SessionRecord(name, "t", name, SessionOptions()))
            log = mine.create_execution(name, f"{name}-e", ExecutionRequest(code="1"))
            log.append(Stdout(content="x"))
        mine.end_session("is closed", "over")
        await mine.flushed()
        with pytest.raises(Unavailable, match="taken over"):
            await other.past_execution("t", "goes on", "goes on-e")
        closed = await other.past_execution("t", "is closed", "is closed-e")
        assert closed is not None
        assert closed.result is not None  # its session has ended without one
        mine.executions("goes on")["goes on-e"].append(Result(success=True))
        await mine.flushed()
        ended = await other.past_execution("t", "goes on", "goes on-e")
        assert ended is not None
        assert ended.result is not None
        assert ended.result.success
    finally:
        await other.stop()
        await mine.stop()


async def test_a_long_search_delays_no_commit(postgres: Server) -> None:
    """While the history is searched, what is recorded is committed."""
    url = postgres.new_database()
    store = PostgresStore(url)
    await store.start()
    try:
        searching = asyncio.create_task(
            store._query(lambda history: history.database._query("SELECT pg_sleep(2)"))
        )

        def it_is_there() -> bool:
            with connect(url, "test", patience=10) as other:
                found = other.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(2)'"
                    " AND state = 'active'"
                )
                return found.fetchone() == (1,)

        await until(it_is_there)
        for number in range(5):
            store.record_session(SessionRecord(f"k{number}", "t", f"s{number}", SessionOptions()))
            begun = time.monotonic()
            await store.flushed()
            assert time.monotonic() - begun < 1
        assert not searching.done()
        assert len(await searching) == 1
    finally:
        await store.stop()


async def test_what_cannot_be_stored_is_told(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for the store ends, with a reason, and the store ends in time."""
    for name in ("_COMMIT_S", "_READ_S", "_STOP_S"):
        monkeypatch.setattr(postgres_store, name, 0.5)
    with relay(postgres) as network:
        store = PostgresStore(network.url(postgres.new_database()))
        await store.start()
        network.silence()
        store.record_session(SessionRecord("key", "t", "s", SessionOptions()))
        with pytest.raises(Unavailable, match="takes no changes: it does not answer"):
            await store.flushed()
        with pytest.raises(Unavailable, match="takes no changes"):
            await store.closed_reason("t", "other")
        begun = time.monotonic()
        await store.stop()
        assert time.monotonic() - begun < 25
