"""A request with an Idempotency-Key is performed once, however often it is sent."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from kernelbroker.protocol.errors import Conflict, Unavailable
from kernelbroker_server.service import executions, idempotency
from kernelbroker_server.service.idempotency import IdempotencyCache, IdempotencyKey

from tests.support.gateway import Cell
from tests.support.http import Answer, Api
from tests.support.waiting import until
from tests.support.world import Breakpoint

EXEC, SESSIONS = "/api/v1/exec", "/api/v1/sessions"


async def ask(api: Api, path: str, body: Any, key: str = "k") -> Answer:
    headers = {"Idempotency-Key": key, "Accept": "application/x-ndjson"}
    return await api.ask("POST", path, body, headers=headers)


@pytest.mark.parametrize("body", [{}, {"session_id": "mine"}])
async def test_a_repeated_execution_runs_once(api: Api, body: dict[str, str]) -> None:
    """The second request gets the events of the first one; the cell runs once."""
    ran: list[Cell] = []

    async def count(cell: Cell) -> None:
        ran.append(cell)
        cell.stdout(f"run {len(ran)}\n")

    api.world.backend.scripts["count"] = count
    first = await ask(api, EXEC, {"code": "count", **body})
    again = await ask(api, EXEC, {"code": "count", **body})
    assert first.status == again.status == 200
    assert b"run 1" in first.body
    assert again.body == first.body
    assert len(ran) == 1
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    other = await ask(api, EXEC, {"code": "count", **body}, key="other")
    assert b"run 2" in other.body
    await until(lambda: len(api.world.registry.list()) == len(body))


async def test_a_repetition_gets_the_whole_answer(api: Api) -> None:
    """A cell continues after a disconnect, and a repeated request gets all its events."""
    point = Breakpoint()
    api.world.backend.scripts["wait"] = point
    headers = {"Idempotency-Key": "k", "Accept": "application/x-ndjson"}
    async with api.exchange("POST", EXEC, {"code": "wait"}, headers=headers) as exchange:
        await exchange.chunk()
        await point.reached()
        exchange.hang_up()
    again = asyncio.create_task(ask(api, EXEC, {"code": "wait"}))
    await asyncio.sleep(0)
    assert len(api.world.registry.list()) == 1
    point.go_on.set()
    assert b'"success":true' in (await again).body
    await until(lambda: not api.world.registry.list())


async def test_concurrent_requests_are_one(api: Api) -> None:
    """Concurrent requests with one key are performed once."""
    answers = await asyncio.gather(*(ask(api, SESSIONS, {}) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 201]
    assert len({answer.json["session_id"] for answer in answers}) == 1
    assert len(api.world.registry.list()) == 1


async def test_a_key_of_another_request_is_a_conflict(api: Api) -> None:
    """A different request with the same key is a conflict, and is not performed."""
    await ask(api, SESSIONS, {"session_id": "a"})
    answer = await ask(api, SESSIONS, {"session_id": "b"})
    assert (answer.status, answer.error["code"]) == (409, "conflict")
    assert [session.id for session in api.world.registry.list()] == ["a"]


async def test_a_failed_request_can_be_tried_again(api: Api) -> None:
    """A refused request leaves its key free."""
    api.world.admission.max_queued = 0
    assert (await ask(api, EXEC, {"code": "1", "session_id": "mine"})).status == 429
    api.world.admission.max_queued = 10
    assert (await ask(api, EXEC, {"code": "1", "session_id": "mine"})).status == 200


async def test_a_key_of_a_closed_session_opens_no_new_one(api: Api) -> None:
    """The key of a closed session opens no new session."""
    opened = await ask(api, SESSIONS, {})
    await api.ask("DELETE", f"{SESSIONS}/{opened.json['session_id']}")
    assert (await ask(api, SESSIONS, {})).status == 410


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
async def test_an_invalid_key_is_refused(api: Api, key: str) -> None:
    """An invalid key is refused, and the message describes valid keys."""
    for path in (EXEC, SESSIONS):
        answer = await ask(api, path, {"code": "1"} if path == EXEC else {}, key=key)
        assert answer.status == 400
        assert "Idempotency-Key" in answer.error["message"]


async def test_keys_are_bounded_in_time_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are remembered for a limited time, in a limited number and size."""
    now = [0.0]
    done: list[str] = []
    keys: IdempotencyCache[str] = IdempotencyCache(len, lambda: now[0])

    async def once(key: str, outcome: str = "x") -> bool:
        async def work() -> str:
            done.append(key)
            return outcome

        return (await keys.once(IdempotencyKey(key, b""), work))[1]

    assert [await once("a"), await once("a")] == [False, True]
    now[0] = 601.0
    assert not await once("a")
    monkeypatch.setattr(idempotency, "_REMEMBERED_MAX", 2)
    for key in "bcde":
        assert not await once(key)
    assert [await once("e"), await once("a")] == [True, False]
    monkeypatch.setattr(idempotency, "_REMEMBERED_MAX", 100)
    monkeypatch.setattr(idempotency, "_REMEMBERED_BYTES", 10)
    await once("large", "x" * 11)
    assert not await once("e")


async def test_a_running_request_does_not_keep_later_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running request is kept, and later keys are forgotten in time."""
    monkeypatch.setattr(idempotency, "_REMEMBERED_MAX", 2)
    keys: IdempotencyCache[str] = IdempotencyCache(len)
    go_on = asyncio.Event()

    async def wait() -> str:
        await go_on.wait()
        return "waited"

    async def work() -> str:
        return "x"

    waiting = asyncio.create_task(keys.once(IdempotencyKey("first", b""), wait))
    await asyncio.sleep(0)
    for key in "abcd":
        assert await keys.once(IdempotencyKey(key, b""), work) == ("x", False)
    assert await keys.once(IdempotencyKey("a", b""), work) == ("x", False)  # it was forgotten
    go_on.set()
    assert await keys.once(IdempotencyKey("first", b""), work) == ("waited", True)
    assert await waiting == ("waited", False)


async def test_remembered_keys_cost_later_requests_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered is not encoded again at each request."""
    monkeypatch.setattr(executions, "encode", Mock(wraps=executions.encode))

    async def encodings(key: str) -> int:
        before = executions.encode.call_count  # type: ignore[attr-defined]
        assert (await ask(api, EXEC, {"code": "1"}, key)).status == 200
        return int(executions.encode.call_count - before)  # type: ignore[attr-defined]

    first = await encodings("first")
    for number in range(10):
        assert await encodings(f"k{number}") == first


async def test_a_failure_reaches_only_its_own_callers() -> None:
    """A request that arrives when another one fails is not refused with it."""
    keys: IdempotencyCache[str] = IdempotencyCache(len)

    async def fail() -> str:
        raise Conflict("no")

    async def work() -> str:
        return "x"

    failing = asyncio.create_task(keys.once(IdempotencyKey("a", b""), fail))
    await asyncio.sleep(0)  # it has begun, and its work is next
    other = asyncio.create_task(keys.once(IdempotencyKey("b", b""), work))
    assert await other == ("x", False)
    with pytest.raises(Conflict):
        await failing


async def test_stop_refuses_running_and_later_requests() -> None:
    """Running requests are refused when the broker stops, and so are later ones."""
    keys: IdempotencyCache[str] = IdempotencyCache(len)

    async def wait() -> str:
        await asyncio.Event().wait()
        return "x"

    waiting = asyncio.create_task(keys.once(IdempotencyKey("a", b""), wait))
    await asyncio.sleep(0)
    keys.cancel()
    with pytest.raises(Unavailable, match="shutting down"):
        await waiting


async def test_a_closed_session_keeps_no_executions(api: Api) -> None:
    """A closed session keeps no executions, except one with a key."""
    body = {"code": "1", "session_id": "mine"}
    first = await ask(api, EXEC, body)
    session = api.world.registry.get("mine")
    assert len(session.executions) == 1
    await api.ask("DELETE", f"{SESSIONS}/mine")
    assert len(session.executions) == 0
    assert (await ask(api, EXEC, body)).body == first.body
