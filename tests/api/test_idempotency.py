"""A request under an Idempotency-Key is done once, however often it is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernelbroker.protocol.errors import Conflict, Unavailable
from kernelbroker_server.sessions import repeats
from kernelbroker_server.sessions.repeats import Repeats

from tests.support.gateway import Cell
from tests.support.http import Answer, Api
from tests.support.waiting import until
from tests.support.world import Breakpoint

EXEC, SESSIONS = "/api/v1/exec", "/api/v1/sessions"


async def ask(api: Api, path: str, body: Any, key: str = "k") -> Answer:
    headers = {"Idempotency-Key": key, "Accept": "application/x-ndjson"}
    return await api.ask("POST", path, body, headers=headers)


@pytest.mark.parametrize("body", [{}, {"session_id": "mine"}])
async def test_executions(api: Api, body: dict[str, str]) -> None:
    """The second request gets the first one's events; the cell ran once."""
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


async def test_a_client_that_lost_the_answer(api: Api) -> None:
    """A cell whose client goes away runs on, and a repetition of its request gets all of it."""
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


async def test_at_the_same_time(api: Api) -> None:
    """Requests that come together are one."""
    answers = await asyncio.gather(*(ask(api, SESSIONS, {}) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 201]
    assert len({answer.json["session_id"] for answer in answers}) == 1
    assert len(api.world.registry.list()) == 1


async def test_another_request(api: Api) -> None:
    """A key belongs to one request: another one is a conflict, and is not done."""
    await ask(api, SESSIONS, {"session_id": "a"})
    answer = await ask(api, SESSIONS, {"session_id": "b"})
    assert (answer.status, answer.error["code"]) == (409, "conflict")
    assert [session.id for session in api.world.registry.list()] == ["a"]


async def test_what_failed_can_be_tried_again(api: Api) -> None:
    """A request that was refused leaves its key free."""
    api.world.gate.max_queued = 0
    assert (await ask(api, EXEC, {"code": "1", "session_id": "mine"})).status == 429
    api.world.gate.max_queued = 10
    assert (await ask(api, EXEC, {"code": "1", "session_id": "mine"})).status == 200


async def test_a_session_that_is_closed(api: Api) -> None:
    """Its request brings no new one."""
    opened = await ask(api, SESSIONS, {})
    await api.ask("DELETE", f"{SESSIONS}/{opened.json['session_id']}")
    assert (await ask(api, SESSIONS, {})).status == 410


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
async def test_a_key_that_is_none(api: Api, key: str) -> None:
    """It is refused, and says what a key is."""
    for path in (EXEC, SESSIONS):
        answer = await ask(api, path, {"code": "1"} if path == EXEC else {}, key=key)
        assert answer.status == 400
        assert "Idempotency-Key" in answer.error["message"]


async def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are remembered for their time, no more than so many, and no more than so many bytes."""
    now = [0.0]
    done: list[str] = []
    keys: Repeats[str] = Repeats(len, lambda: now[0])

    async def once(key: str, outcome: str = "x") -> bool:
        async def work() -> str:
            done.append(key)
            return outcome

        return (await keys.once(key, b"", work))[1]

    assert [await once("a"), await once("a")] == [False, True]
    now[0] = 601.0
    assert not await once("a")
    monkeypatch.setattr(repeats, "_REMEMBERED_MAX", 2)
    for key in "bcde":
        assert not await once(key)
    assert [await once("e"), await once("a")] == [True, False]
    monkeypatch.setattr(repeats, "_REMEMBERED_MAX", 100)
    monkeypatch.setattr(repeats, "_REMEMBERED_BYTES", 10)
    await once("large", "x" * 11)
    assert not await once("e")


async def test_one_under_way_keeps_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not ended stays, and what came after it is forgotten in its time all the same."""
    monkeypatch.setattr(repeats, "_REMEMBERED_MAX", 2)
    keys: Repeats[str] = Repeats(len)
    go_on = asyncio.Event()

    async def wait() -> str:
        await go_on.wait()
        return "waited"

    async def work() -> str:
        return "x"

    waiting = asyncio.create_task(keys.once("first", b"", wait))
    await asyncio.sleep(0)
    for key in "abcd":
        assert await keys.once(key, b"", work) == ("x", False)
    assert await keys.once("a", b"", work) == ("x", False)  # it was forgotten
    go_on.set()
    assert await keys.once("first", b"", work) == ("waited", True)
    assert await waiting == ("waited", False)


async def test_a_failure_is_told_to_nobody_else() -> None:
    """A request that comes in the very moment at which another one fails is not refused with it."""
    keys: Repeats[str] = Repeats(len)

    async def fail() -> str:
        raise Conflict("no")

    async def work() -> str:
        return "x"

    failing = asyncio.create_task(keys.once("a", b"", fail))
    await asyncio.sleep(0)  # it has begun, and its work is next
    other = asyncio.create_task(keys.once("b", b"", work))
    assert await other == ("x", False)
    with pytest.raises(Conflict):
        await failing


async def test_given_up() -> None:
    """What is under way when the broker stops is refused, as whatever comes later is."""
    keys: Repeats[str] = Repeats(len)

    async def wait() -> str:
        await asyncio.Event().wait()
        return "x"

    waiting = asyncio.create_task(keys.once("a", b"", wait))
    await asyncio.sleep(0)
    keys.cancel()
    with pytest.raises(Unavailable, match="shutting down"):
        await waiting


async def test_what_is_remembered_of_a_session(api: Api) -> None:
    """A closed session keeps none of its executions; one under a key is remembered by itself."""
    body = {"code": "1", "session_id": "mine"}
    first = await ask(api, EXEC, body)
    session = api.world.registry.get("mine")
    assert len(session.executions) == 1
    await api.ask("DELETE", f"{SESSIONS}/mine")
    assert len(session.executions) == 0
    assert (await ask(api, EXEC, body)).body == first.body
