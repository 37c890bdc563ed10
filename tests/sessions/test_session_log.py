"""The events of sessions in the event store: kept, bounded, mirrored from executions, and found again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.events import Display, ErrorDetail, Result, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker.protocol.operations import TEST_OUTPUT_MIME
from kernelbroker.protocol.session_events import CodeOperation, Observation, Plan
from kernelbroker_server.sessions import session_log
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.sessions.memory_store import MemoryStore
from kernelbroker_server.sessions.session_log import SessionLog
from kernelbroker_server.sessions.store import EventStore, SessionRecord


@pytest.fixture(params=["memory", "durable"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    store: EventStore = MemoryStore() if request.param == "memory" else DurableStore(tmp_path)
    await store.start()
    yield store
    await store.stop()


def opened(store: EventStore, key: str = "k", session_id: str = "s") -> SessionLog:
    store.record_session(SessionRecord(key, "t", session_id, SessionOptions()))
    return store.session_log(key)


def contents(log: SessionLog | None, after: int = 0) -> list[dict[str, Any]]:
    assert log is not None
    return [json.loads(each.json) for each in log.read(after)]


async def test_events_outlive_their_session(store: EventStore) -> None:
    """The events of the latest ended session with an id are found; those of another tenant are not."""
    for key in ("first", "second"):
        log = opened(store, key)
        log.append(Observation(content=key))
        store.end_session(key, "over")
        assert log.has_ended
    past = await store.past_session_log("t", "s")
    assert [each["content"] for each in contents(past)] == ["second"]
    assert past is not None
    assert [each.seq async for each in past.follow()] == [1]
    assert await store.past_session_log("other", "s") is None
    assert await store.past_session_log("t", "other") is None
    assert store.session_log("first").has_ended


async def test_operations_are_mirrored(store: EventStore) -> None:
    """The tests and the result of an operation's execution come in the session's events; cells do not."""
    log = opened(store)
    cell = store.create_execution("k", "cell", ExecutionRequest(code="1"))
    run = store.create_execution("k", "run", ExecutionRequest(code="run_tests"))
    log.append(CodeOperation(operation="run_tests", operation_id="run", execution_id="run"))
    log.append(CodeOperation(operation="forged", execution_id="cell"), "sdk")
    tests = [{"test": "test_a", "outcome": "passed", "seconds": 0.1}]
    for seen in ({"tests": tests, "passed": 1, "failed": True, "errors": -1}, "garbage", None):
        run.append(Display(data={TEST_OUTPUT_MIME: seen}))
        cell.append(Display(data={TEST_OUTPUT_MIME: seen}))
    run.append(Stdout(content="out"))
    answer = {"success": False, "result": {"passed": 1}, "error": "1 test failed", "code": "failed"}
    run.append(Result(success=True, return_value=answer, execution_time=1.5))
    cell.append(Result(success=True, return_value=answer))
    mirrored = contents(log, 2)
    assert [each["type"] for each in mirrored] == [*["test_output"] * 3, "result"]
    assert (mirrored[0]["tests"], mirrored[0]["passed"]) == (tests, 1)
    assert "failed" not in mirrored[0]
    assert mirrored[-1] | {"at": "", "seq": 0} == {
        "type": "result",
        "seq": 0,
        "at": "",
        "source": "broker",
        "success": False,
        "operation": "run_tests",
        "operation_id": "run",
        "execution_id": "run",
        "error": "1 test failed",
        "code": "failed",
        "execution_time_ms": 1500,
        "result": {"passed": 1},
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            Result(
                success=False,
                error="TimeoutError: late",
                error_detail=ErrorDetail(name="TimeoutError", value="late", cause="timeout"),
            ),
            (False, "TimeoutError: late", "timeout", None),
        ),
        (
            Result(success=True, return_value=["x"]),
            (False, "it sent no valid answer", "failed", None),
        ),
        (
            Result(success=True, return_value={"success": 1, "error": 5, "code": {}}),
            (False, "5", "failed", None),
        ),
        (
            Result(
                success=True,
                return_value={"success": True, "result": {"big": "x" * 50_000, "passed": 3}},
            ),
            (True, None, None, {"passed": 3}),
        ),
        (
            Result(
                success=True,
                return_value={"success": False, "error": "\0" * 9_000, "result": "\0" * 5_000},
            ),
            (False, "\0" * 2_000, "failed", "\0" * 5_000),
        ),
        (
            Result(success=True, return_value={"success": True, "result": "\ud800"}),
            (True, None, None, "\ud800"),
        ),
    ],
)
def test_results_that_are_odd(result: Result, expected: tuple[object, ...]) -> None:
    """A result is mirrored whatever the sandbox sent: failures, garbage, and large ones in short."""
    log = SessionLog()
    log.append(CodeOperation(operation="run", execution_id="e"))
    log.mirror("e", result)
    (event,) = contents(log, 1)
    found = tuple(event.get(name) for name in ("success", "error", "code", "result"))
    assert found == expected
    log.mirror("e", result)
    assert log.last == 2


async def test_events_outlive_a_killed_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, an adopted session goes on with its events, others are history, and what was
    forgotten stays so."""
    monkeypatch.setattr(session_log, "MAX_EVENTS", 3)
    killed = DurableStore(tmp_path)
    await killed.start()
    for key in ("adopted", "lost"):
        log = opened(killed, key, key)
        killed.create_execution(key, "run", ExecutionRequest(code="run_tests"))
        for step in range(4):
            log.append(Plan(steps=[f"step {step}"]))
        log.append(CodeOperation(operation="run_tests", operation_id="run", execution_id="run"))
    copied = tmp_path / "copy"
    copy_as_it_is(tmp_path, copied)
    await killed.stop()

    store = DurableStore(copied)
    await store.start()
    await store.end_lost({"adopted"})
    log = store.session_log("adopted")
    assert [each["seq"] for each in contents(log)] == [3, 4, 5]
    store.executions("adopted")["run"].append(
        Result(success=True, return_value={"success": True, "result": {"passed": 2}})
    )
    ended = contents(log)[-1]
    assert (ended["type"], ended["seq"], ended["operation"]) == ("result", 6, "run_tests")
    lost = await store.past_session_log("t", "lost")
    assert [each["seq"] for each in contents(lost)] == [3, 4, 5]
    store.end_session("adopted", "over")
    await store.stop()

    store = DurableStore(copied)
    await store.start()
    again = await store.past_session_log("t", "adopted")
    assert [each["seq"] for each in contents(again)] == [4, 5, 6]
    later = opened(store, "later", "later")
    await store.continue_log("adopted", "later")
    later.append(Plan(steps=[]))
    assert [each["seq"] for each in contents(later)] == [5, 6, 7]
    store.end_session("later", "over")
    await store.stop()
    store = DurableStore(copied)
    await store.start()
    assert [each["seq"] for each in contents(await store.past_session_log("t", "later"))] == [
        5,
        6,
        7,
    ]
    await store.stop()


def copy_as_it_is(source: Path, target: Path) -> None:
    """The files of a store that runs, as a kill would leave them."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())


async def test_expired_sessions_take_their_events_along(tmp_path: Path) -> None:
    """The events of a session are removed with it."""
    now = [1000.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    store = DurableStore(tmp_path, retention=10, clock=clock)
    await store.start()
    opened(store).append(Plan(steps=[]))
    store.end_session("k", "over")
    assert contents(await store.past_session_log("t", "s")) != []
    now[0] += 11
    assert await store.past_session_log("t", "s") is None
    await store._query(lambda archive: archive.tidy())
    assert await store._query(lambda archive: archive.session_events("k")) == []
    await store.stop()
