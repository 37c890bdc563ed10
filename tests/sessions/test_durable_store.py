"""The durable store's files: reopened, damaged, of another version, locked, full, too old, too large."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import sqlite3
import stat
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.events import Image, Result, Started, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker.protocol.session_events import Observation
from kernelbroker_server.sessions import backlog, journal, memory_store, schema
from kernelbroker_server.sessions.database import Database
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.sessions.records import SessionEnded
from kernelbroker_server.sessions.state_directory import InUse, StateDirectory
from kernelbroker_server.sessions.store import Entry, SessionRecord

from tests.support.waiting import DEADLINE_S, until

FAR = time.time() + 10**6
VERSION_1 = Path(__file__).with_name("store_version_1.sql")


@contextlib.asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[DurableStore]:
    store = DurableStore(path, **options)
    await store.start()
    await store.end_lost()
    try:
        yield store
    finally:
        await store.stop()


def ran(
    store: DurableStore, session_id: str, text: str = "out", options: SessionOptions | None = None
) -> None:
    """Record a session with one execution, both ended."""
    store.record_session(SessionRecord(session_id, "t", session_id, options or SessionOptions()))
    log = store.create_execution(session_id, "e", ExecutionRequest(code="1"))
    log.begin()
    for event in (Started(), Stdout(content=text), Result(success=True)):
        log.append(event)
    store.end_session(session_id, "over")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def size_of(path: Path) -> int:
    return path.stat().st_size


def files(directory: Path, pattern: str = "*") -> list[Path]:
    return sorted(directory.glob(pattern))


async def output(store: DurableStore, session_id: str) -> str | None:
    log = await store.past_execution("t", session_id, "e")
    if log is None:
        return None
    return "".join(each.event.content for each in log.read() if isinstance(each.event, Stdout))


async def test_a_superseded_store_takes_nothing(tmp_path: Path) -> None:
    """When a later broker has the directory, the store writes and shows nothing more, and reports it."""
    told: list[Path] = []
    async with opened(tmp_path, on_superseded=told.append) as store:
        ran(store, "a")
        store.expect_newest()
        assert told == []
        size = sum(map(size_of, files(tmp_path, "journal-*")))
        (tmp_path / "lock").unlink()  # as on a file system whose locks do not work
        later = StateDirectory(tmp_path)
        later.raise_epoch()
        later.release()
        store.expect_newest()
        ran(store, "b")
        assert set(told) == {tmp_path}
        assert sum(map(size_of, files(tmp_path, "journal-*"))) == size
    async with opened(tmp_path) as store:
        assert await output(store, "a") == "out"
        assert await output(store, "b") is None


async def test_everything_is_there_after_a_stop(tmp_path: Path) -> None:
    """A stopped store leaves one closed file, from which the next one has everything."""
    entry = Entry("kind", "t", "name", b"value", FAR)
    async with opened(tmp_path) as store:
        ran(store, "a", "x" * 3_000_000)
        store.put_entry(entry)
    assert [path.name for path in files(tmp_path)] == ["epoch", "lock", "store.sqlite3"]
    for path in files(tmp_path):
        assert mode_of(path) == 0o600
    assert mode_of(tmp_path) == 0o700
    async with opened(tmp_path) as store:
        assert await output(store, "a") == "x" * 3_000_000
        assert store.entry("kind", "t", "name") == entry
        ran(store, "b")
        assert await output(store, "b") == "out"
        assert await output(store, "a") == "x" * 3_000_000
    with pytest.raises(Unavailable):
        await output(store, "a")


DAMAGES = {
    "truncated": b'{"workspace": "w',
    "random": bytes(range(256)),
    "empty": b"",
    "of another type": b"[1]",
    "of a later version": b'{"a_later_field": 1}',
    "an invalid name": b'{"from_checkpoint": ".fork-1"}',
    "text": "not bytes",
    "a number": 3,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "place",
    [
        "sessions.options",
        "executions.request",
        "executions.packages",
        "events.json",
        "session_events.json",
    ],
)
async def test_a_row_that_cannot_be_read_is_left_out(
    tmp_path: Path, place: str, damage: str
) -> None:
    """A broker starts and lists the rest, whatever a row has; it tells that the row is there."""
    table, column = place.split(".")
    async with opened(tmp_path) as store:
        for name in ("good", "bad"):
            ran(store, name, name)
            for key in (f"waits-{name}", f"runs-{name}"):
                store.record_session(SessionRecord(key, "t", key, SessionOptions()))
                store.session_log(key).append(Observation(content="a note"))
                log = store.create_execution(key, "e", ExecutionRequest(code="1"))
                if key.startswith("runs"):
                    log.begin()
                    log.append(Started())
    bad = "(SELECT number FROM executions WHERE session_key LIKE '%bad')"
    which = {
        "sessions": "key LIKE '%bad'",
        "executions": "session_key LIKE '%bad'",
        "events": f"number IN {bad} AND seq < 3",
        "session_events": "session_key LIKE '%bad'",
    }[table]
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite3")) as connection, connection:
        # As if the broker had been killed.
        connection.execute("UPDATE sessions SET ended_at = NULL WHERE key LIKE '%-%'")
        changed = connection.execute(
            f"UPDATE {table} SET {column} = ? WHERE {which}", (DAMAGES[damage],)
        )
        assert changed.rowcount > 0
    store = DurableStore(tmp_path)
    await store.start()
    try:
        left = [each.record.key for each in await store.adoptable()]
        await store.end_lost(left)
        assert "waits-good" in left
        assert (table == "sessions") is ("waits-bad" not in left)
        page = await store.past_sessions("t", "", 10, None)
        assert "good" in [each.session_id for each in page.sessions]
        assert [each.id for each in await store.past_executions("t", "good")] == ["e"]
        await store.past_executions("t", "bad")
        assert await output(store, "good") == "good"
        damaged = table in ("executions", "events")
        assert await output(store, "bad") == (None if damaged else "bad")
        (problem,) = store.problems()
        assert "rows that cannot be read" in problem
    finally:
        await store.stop()
    async with opened(tmp_path) as store:  # what was left open has ended
        assert await output(store, "good") == "good"


async def test_a_fork_can_be_read_again(tmp_path: Path) -> None:
    """A session that was forked when the broker died goes on in the next one, and is listed at its end."""
    async with opened(tmp_path) as store:
        options = SessionOptions(from_checkpoint=".fork-1", workspace="w")
        for key in ("left", "ended"):
            store.record_session(SessionRecord(key, "t", key, options))
        store.end_session("ended", "over")
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite3")) as connection, connection:
        connection.execute("UPDATE sessions SET ended_at = NULL WHERE key = 'left'")
    store = DurableStore(tmp_path)
    await store.start()
    (left,) = await store.adoptable()
    assert (left.record.key, left.record.options.workspace) == ("left", "w")
    page = await store.past_sessions("t", "", 10, None)
    assert [each.session_id for each in page.sessions] == ["ended"]
    assert store.problems() == []
    await store.stop()


async def test_secrets_are_not_stored(tmp_path: Path) -> None:
    """Values of secrets, of sessions and of cells, are in no file."""
    async with opened(tmp_path) as store:
        options = SessionOptions(secrets={"TOKEN": "value-of-session"})
        store.record_session(SessionRecord("a", "t", "a", options))
        request = ExecutionRequest(code="in-the-file", secrets={"TOKEN": "value-of-cell"})
        log = store.create_execution("a", "e", request)
        log.append(Result(success=True))
        in_journal = b"".join(path.read_bytes() for path in files(tmp_path, "journal-*"))
        await store.past_execution("t", "a", "e")
        assert store.sessions("t")[0].options.secrets == {"TOKEN": "value-of-session"}
    assert b"in-the-file" in in_journal
    for data in (in_journal, (tmp_path / "store.sqlite3").read_bytes()):
        assert b"value-of" not in data


async def test_one_broker_at_a_time(tmp_path: Path) -> None:
    """A second store in the same directory is refused, and told who has it."""
    async with opened(tmp_path):
        with pytest.raises(InUse, match=f"the broker with pid {os.getpid()} on .*, started 2"):
            await DurableStore(tmp_path).start()
    async with opened(tmp_path) as store:
        assert store.problems() == []
    lock = os.open(tmp_path / "lock", os.O_RDWR)
    try:
        os.ftruncate(lock, 0)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InUse, match="another broker"):
            StateDirectory(tmp_path)
    finally:
        os.close(lock)


# Damaged and newer files.


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_damaged_database_is_kept_aside(tmp_path: Path, size: int) -> None:
    """A damaged file is kept and reported until it is removed; a new one takes its place."""
    async with opened(tmp_path) as store:
        ran(store, "a")
    database = tmp_path / "store.sqlite3"
    database.write_bytes(b"garbage" * size)
    async with opened(tmp_path) as store:
        assert await output(store, "a") is None
        ran(store, "b")
        (problem,) = store.problems()
        assert "kept aside" in problem
    (aside,) = files(tmp_path, "store.sqlite3.damaged-*")
    assert aside.read_bytes() == b"garbage" * size
    async with opened(tmp_path) as store:
        assert await output(store, "b") == "out"
        assert len(store.problems()) == 1
    aside.unlink()
    async with opened(tmp_path) as store:
        assert store.problems() == []


async def test_damage_within_is_found_after_a_crash(tmp_path: Path) -> None:
    """A file that no broker has closed is checked as a whole."""
    async with opened(tmp_path) as store:
        for number in range(20):
            ran(store, str(number), "x" * 10_000)
    path = tmp_path / "store.sqlite3"
    database = Database(path)
    database.abandon()  # as if killed: it is marked as in use
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 6] = os.urandom(4096 * 3)
    path.write_bytes(data)
    async with opened(tmp_path) as store:
        assert "kept aside" in store.problems()[0]
        ran(store, "new")
        assert await output(store, "new") == "out"


async def test_a_newer_database_is_kept_aside(tmp_path: Path) -> None:
    """A file of a newer version is kept as it is, with its journal, for that version."""
    async with opened(tmp_path) as store:
        ran(store, "a")
    path = tmp_path / "store.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    (tmp_path / "journal-0000000000000900").write_bytes(b"of a newer version")
    async with opened(tmp_path) as store:
        assert await output(store, "a") is None
        assert len(store.problems()) == 2
    (aside,) = files(tmp_path, "store.sqlite3.newer-*")
    with contextlib.closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT reason FROM sessions").fetchall() == [("over",)]
    (left,) = files(tmp_path, "journal-*.newer-*")
    assert left.read_bytes() == b"of a newer version"


async def crashed(path: Path, *session_ids: str) -> Path:
    """Leave a state directory as a killed broker does. Returns the journal, which holds everything."""
    async with opened(path):
        pass
    database = Database(path / "store.sqlite3")
    serial = database.applied + 1
    database.abandon()
    left = journal.Journal(path, serial)
    store = DurableStore(path)
    store._record = lambda record: left.append(record) or True  # type: ignore[method-assign,func-returns-value]
    for session_id in session_ids:
        store._next_number += 10
        ran(store, session_id)
    left.close()
    return left.segments[0].path


@pytest.mark.parametrize("damage", ["checksum", "length", "head"])
async def test_a_damaged_journal_is_kept_aside(tmp_path: Path, damage: str) -> None:
    """Of a damaged journal everything before the damage is used, and the file is kept."""
    path = await crashed(tmp_path, "a", "b")
    data = bytearray(path.read_bytes())
    if damage == "checksum":
        data[-5] ^= 255
    elif damage == "length":
        data += bytes(100)  # a power cut can leave zeros
    else:
        data[3] = 77
    path.write_bytes(data)
    async with opened(tmp_path) as store:
        assert await output(store, "a") == (None if damage == "head" else "out")
        (problem,) = store.problems()
        assert "kept aside" in problem
        ran(store, "c")
    (aside,) = files(tmp_path, "journal-*.damaged-*")
    assert aside.read_bytes() == data
    async with opened(tmp_path) as store:
        assert await output(store, "c") == "out"


async def test_an_incomplete_last_record_is_dropped(tmp_path: Path) -> None:
    """A record that was being written when the broker was killed was seen by nobody, and is dropped."""
    path = await crashed(tmp_path, "a")
    size = path.stat().st_size
    for cut in (size - 1, size - 20, 5):
        os.truncate(path, cut)
        data = path.read_bytes()
        async with opened(tmp_path) as store:
            assert store.problems() == []
            found = await store.past_execution("t", "a", "e")
            assert (found is None) == (cut == 5)
        assert not path.exists()
        (tmp_path / "store.sqlite3").unlink()
        path.write_bytes(data)


async def test_lost_records_leave_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a part of the journal is lost, an execution ends before the first event that is missing."""
    monkeypatch.setitem(journal.Journal.__init__.__kwdefaults__, "segment_bytes", 1)
    await crashed(tmp_path, "a", "b", "c")
    segments = files(tmp_path, "journal-*")
    outputs = [path for path in segments if b'"content"' in path.read_bytes()]
    outputs[1].unlink()  # that of b
    async with opened(tmp_path) as store:
        for name, expected in (("a", "out"), ("b", ""), ("c", "out")):
            log = await store.past_execution("t", name, "e")
            assert log is not None
            assert [each.event.seq for each in log.read()] == [*range(1, len(log.read()) + 1)]
            assert await output(store, name) == expected
            assert log.result is not None
            assert log.result.success == (name != "b")
        assert store.problems() == []


# Versions.


def test_version_1_is_what_it_was(tmp_path: Path) -> None:
    """The first migration makes the schema that was released."""
    database = Database(tmp_path / "new", schema.MIGRATIONS[:1])
    database.abandon()
    with contextlib.closing(sqlite3.connect(tmp_path / "new")) as new:
        made = {
            _words(row[0])
            for row in new.execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL")
        }
    with contextlib.closing(sqlite3.connect(tmp_path / "old")) as old:
        old.executescript(VERSION_1.read_text())
        was = {
            _words(row[0])
            for row in old.execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL")
        }
    assert made == was


def _words(statement: str) -> str:
    return " ".join(statement.split())


async def test_a_file_of_version_1_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of version 1 is read by this broker, and by one that has another version."""
    path = tmp_path / "store.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1.read_text())
    async with opened(tmp_path) as store:
        assert await output(store, "old") == "as it was\n"

    def version_after(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE sessions RENAME COLUMN reason TO why")
        connection.execute("ALTER TABLE sessions RENAME COLUMN why TO reason")
        connection.execute("CREATE TABLE later (name TEXT)")

    later = [*schema.MIGRATIONS, version_after]
    monkeypatch.setattr(Database.__init__, "__defaults__", (later,))
    async with opened(tmp_path) as store:
        assert await output(store, "old") == "as it was\n"
        ran(store, "new")
        assert store.problems() == []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)
        assert connection.execute("SELECT * FROM later").fetchall() == []


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    """A migration that fails half-way leaves the version and the content as they were."""
    Database(tmp_path / "f").close()

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (name TEXT)")
        raise sqlite3.OperationalError("disk is full")

    with pytest.raises(sqlite3.OperationalError):
        Database(tmp_path / "f", [*schema.MIGRATIONS, fail])
    with contextlib.closing(sqlite3.connect(tmp_path / "f")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
        assert not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchall()


# Bounds.


async def test_history_is_bounded_by_size(tmp_path: Path) -> None:
    """What ended first is removed if the history is larger than its limit, and the file shrinks."""
    async with opened(tmp_path, max_history=0) as store:
        for number in range(30):
            ran(store, str(number), "x" * 100_000)
        assert await output(store, "0") is not None
    large = size_of(tmp_path / "store.sqlite3")
    async with opened(tmp_path, max_history=1_050_000) as store:

        async def kept() -> list[int]:
            return [n for n in range(30) if await output(store, str(n)) is not None]

        async with asyncio.timeout(DEADLINE_S):
            while await kept() != list(range(20, 30)):
                pass
        assert store.problems() == []
    assert size_of(tmp_path / "store.sqlite3") < large / 2


async def test_segments_are_removed_when_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long journal is copied in pieces, and its segments are removed; events of megabytes as well."""
    monkeypatch.setitem(journal.Journal.__init__.__kwdefaults__, "segment_bytes", 200_000)
    async with opened(tmp_path) as store:
        store.record_session(SessionRecord("a", "t", "a", SessionOptions()))
        log = store.create_execution("a", "e", ExecutionRequest(code="1"))
        texts = [str(number) * 5000 for number in range(200)]
        for text in texts:
            log.append(Stdout(content=text))
        log.append(Image(mime="image/png", content="A" * 6_000_000))
        log.append(Result(success=True))
        store.end_session("a", "over")
        assert await output(store, "a") == "".join(texts)
        await until(lambda: len(files(tmp_path, "journal-*")) == 1)


# A full disk.


async def test_executions_go_on_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers get all events; what is not stored is reported, waits for room, and is there later."""
    write = os.write
    async with opened(tmp_path) as store:
        store.record_session(SessionRecord("a", "t", "a", SessionOptions()))
        log = store.create_execution("a", "e", ExecutionRequest(code="1"))
        for fault in (lambda fd, data: write(fd, data[:10]), _no_space):
            monkeypatch.setattr(os, "write", fault)
            log.append(Stdout(content="late"))
            (problem,) = store.problems()
            assert "not stored" in problem
            monkeypatch.setattr(os, "write", write)
        log.append(Result(success=True))
        assert store.problems() == []
        monkeypatch.setattr(os, "write", _no_space)
        store.end_session("a", "over")
        monkeypatch.setattr(os, "write", write)
        store.expect_newest()  # nothing else happens
        assert store.problems() == []
        found = await store.past_execution("t", "a", "e")
        assert found is not None
        assert [type(each.event) for each in found.read()] == [Stdout, Stdout, Result]


async def test_what_might_run_twice_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the beginning of an execution cannot be stored, another broker would run it as well."""
    write = os.write
    async with opened(tmp_path) as store:
        store.record_session(SessionRecord("a", "t", "a", SessionOptions()))
        known = store.create_execution("a", "known", ExecutionRequest(code="1"))
        assert known.begin()
        known = store.create_execution("a", "known, too", ExecutionRequest(code="1"))
        monkeypatch.setattr(os, "write", _no_space)
        assert not known.begin()
        unknown = store.create_execution("a", "unknown", ExecutionRequest(code="1"))
        assert unknown.begin()
        monkeypatch.setattr(os, "write", write)


async def test_too_much_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for room is bounded. If it is too much, a later result says so."""
    write = os.write
    monkeypatch.setattr(backlog, "MAX_BYTES", 10)
    async with opened(tmp_path) as store:
        store.record_session(SessionRecord("a", "t", "a", SessionOptions()))
        log = store.create_execution("a", "e", ExecutionRequest(code="1"))
        log.append(Stdout(content="stored"))
        for fault in (lambda fd, data: write(fd, data[:10]), _no_space):
            monkeypatch.setattr(os, "write", fault)
            log.append(Stdout(content="not stored"))
            (problem,) = store.problems()
            assert "not stored" in problem
            monkeypatch.setattr(os, "write", write)
        log.append(Result(success=True))
        assert [each.event.seq for each in log.read()] == [1, 2, 3, 4]
        ran(store, "b")
        assert store.problems() == []
        store.end_session("a", "over")
        assert await output(store, "b") == "out"
        found = await store.past_execution("t", "a", "e")
        assert found is not None
        assert [type(each.event) for each in found.read()] == [Stdout, Result]
        assert found.result is not None
        assert found.result.error_detail is not None
        assert "could not be stored" in found.result.error_detail.value
        (summary,) = await store.past_executions("t", "a")
        assert summary.result is not None
        assert not summary.result.success


def _no_space(_fd: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_the_database_catches_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the database cannot be written the journal keeps everything, and it is reported."""
    apply = Database.apply

    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with opened(tmp_path) as store:
        monkeypatch.setattr(Database, "apply", refuse)
        ran(store, "a")
        await until(lambda: len(store.problems()) == 1)
        monkeypatch.setattr(Database, "apply", apply)
        await until(lambda: not store.problems())
        assert await output(store, "a") == "out"
        monkeypatch.setattr(Database, "apply", refuse)
        ran(store, "b")
    assert files(tmp_path, "journal-*")
    monkeypatch.setattr(Database, "apply", apply)
    async with opened(tmp_path) as store:
        assert [await output(store, name) for name in "ab"] == ["out", "out"]


async def test_a_backlog_is_bounded(tmp_path: Path) -> None:
    """A journal that the database does not take refuses more than its limit, until some is removed."""
    kept = journal.Journal(tmp_path, 1, segment_bytes=100, max_backlog=1000)
    record = SessionEnded("key", "reason", 1.0)
    with pytest.raises(OSError, match="does not keep up"):
        for _ in range(1000):
            kept.append(record)
    count = len(kept.segments)
    assert count > 3
    while len(kept.segments) > 1:
        kept.remove_first()
    kept.append(record)
    kept.close()


async def test_a_slow_watcher_holds_no_old_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that reads late gets every execution whole, and meanwhile costs what the session does."""
    monkeypatch.setattr(memory_store, "_EXECUTION_BYTES", 10_000)
    names = [f"e{number}" for number in range(20)]
    async with opened(tmp_path) as store:
        store.record_session(SessionRecord("1", "t", "mine", SessionOptions()))
        with store.watch("1") as watcher:
            logs = []
            for name in names:
                log = store.create_execution("1", name, ExecutionRequest(code="1"))
                log.begin()
                for event in (Started(), Stdout(content=name * 1000), Result(success=True)):
                    log.append(event)
                logs.append(weakref.ref(log))
                del log
            gc.collect()
            assert sum(each() is not None for each in logs) < 8
            for name in names:
                found = await watcher.get()
                assert found is not None
                assert found.id == name
                events = [each async for each in found.follow()]
                assert [each.event.seq for each in events] == [1, 2, 3]
                assert events[1].event == Stdout(content=name * 1000, execution_id=name, seq=2)
            store.end_session("1", "over")
            assert await watcher.get() is None
