"""The events of a session for a front end: streams that can be resumed, and events of planners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kernelbroker_server.api import session_events
from kernelbroker_server.service import session_events as service
from kernelbroker_server.sessions import session_log
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import Tenants
from kernelbroker_server.tenants.tokens import TokenFile

from tests.support.backend import FakeBackend
from tests.support.http import Api, Exchange, serving
from tests.support.waiting import DEADLINE_S
from tests.support.world import world

SESSION = "/api/v1/sessions/s"
EVENTS = f"{SESSION}/events"
SSE = {"Accept": "text/event-stream"}
PLAN = {"type": "plan", "steps": ["read", {"id": 2, "title": "mend"}]}


@pytest.fixture
async def opened(api: Api) -> AsyncIterator[Api]:
    assert (await api.ask("POST", "/api/v1/sessions", {"session_id": "s"})).status == 201
    yield api


async def post(api: Api, event: dict[str, Any], status: int = 201) -> Any:
    answer = await api.ask("POST", EVENTS, event)
    assert answer.status == status, answer.body
    return answer.json if status < 400 else answer.error


async def stored(api: Api, after: int = 0) -> list[Any]:
    path = f"{EVENTS}?after={after}"
    return list((await api.ask("GET", path, headers={"Accept": "application/json"})).json["events"])


async def test_lone_surrogates(opened: Api) -> None:
    """Any text that JSON can hold is stored and read."""
    body = b'{"type": "plan", "steps": ["\\udcff"]}'
    assert (await opened.ask("POST", EVENTS, body)).status == 201
    answer = await opened.ask("GET", f"{EVENTS}?after=0", headers={"Accept": "application/json"})
    assert answer.status == 200
    assert "\udcff" in json.dumps(json.loads(answer.body)["events"], ensure_ascii=False)


async def read(exchange: Exchange, count: int) -> list[tuple[str, int, Any]]:
    """The next events of a stream: type, id and data."""
    text, found = "", list[tuple[str, int, Any]]()
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            text += (await exchange.chunk()).decode()
            *blocks, text = text.split("\n\n")
            for block in blocks:
                if not block.startswith(":"):
                    fields = dict(line.split(": ", 1) for line in block.split("\n"))
                    data = json.loads(fields["data"])
                    found.append((fields["event"], int(fields["id"]), data))
    assert not text
    return found


async def test_a_session_begins_with_its_sandbox(opened: Api) -> None:
    """The events begin with `sandbox_created` and `sandbox_ready`; a fresh sandbox is ready again."""
    events = await stored(opened)
    assert [(each["type"], each["seq"], each["source"]) for each in events] == [
        ("sandbox_created", 1, "broker"),
        ("sandbox_ready", 2, "broker"),
    ]
    assert events[1]["sandbox_id"] == "s"
    assert events[1]["template"] == "default"
    assert events[1]["at"].endswith("Z")
    assert (await opened.ask("POST", f"{SESSION}/restart")).status == 200
    assert [each["type"] for each in await stored(opened, 2)] == ["sandbox_ready"]


async def test_events_of_a_planner_are_stored_and_streamed(opened: Api) -> None:
    """Each type can be posted, and comes to all readers, as it was stored."""
    posted = [
        PLAN,
        {"type": "step_start", "step": 1, "title": "read"},
        {"type": "code_operation", "operation": "read", "path": "a.py"},
        {"type": "observation", "content": "it is wrong\u2028here", "data": {"sure": 0.9}},
        {"type": "test_output", "content": "..F", "passed": 2, "failed": 1},
        {"type": "result", "success": True, "content": "done"},
        {"type": "sandbox_created"},
        {"type": "sandbox_ready"},
    ]
    async with opened.exchange("GET", EVENTS, headers=SSE) as first:
        assert first.headers["content-type"].startswith("text/event-stream")
        assert first.headers["cache-control"] == "no-store"
        assert [seq for _, seq, _ in await read(first, 2)] == [1, 2]
        for number, event in enumerate(posted):
            answer = await post(opened, event)
            ((kind, seq, data),) = await read(first, 1)
            assert (kind, seq, data) == (event["type"], number + 3, answer)
            defaults = {"passed": 0}
            assert {**defaults, **data} | event == {**defaults, **data}
            assert data["source"] == "rest"
    assert (await stored(opened, 2))[0]["steps"] == PLAN["steps"]


async def test_a_stream_is_resumed(opened: Api) -> None:
    """A client that was cut off gets what it has missed, by `Last-Event-ID` or `after`."""
    for step in range(5):
        await post(opened, {"type": "step_start", "step": step})
    for headers, path in (
        ({"Last-Event-ID": "4"}, EVENTS),
        ({}, f"{EVENTS}?after=4"),
        ({"Last-Event-ID": "4"}, f"{EVENTS}?after=1"),
    ):
        async with opened.exchange("GET", path, headers=SSE | headers) as exchange:
            assert [data["step"] for _, _, data in await read(exchange, 3)] == [2, 3, 4]
    ahead = {"Last-Event-ID": "99999999999999999999999"}
    async with opened.exchange("GET", EVENTS, headers=SSE | ahead) as exchange:
        await post(opened, {"type": "step_start", "step": 9})
        assert [data["step"] for _, _, data in await read(exchange, 1)] == [9]
    for headers, path in (({"Last-Event-ID": "x"}, EVENTS), ({}, f"{EVENTS}?after=-1")):
        answer = await opened.ask("GET", path, headers=SSE | headers)
        assert (answer.status, answer.error["code"]) == (400, "bad_request")


async def test_silence_is_broken(opened: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without events has signs of life, which are no events."""
    monkeypatch.setattr(session_events, "KEEPALIVE_S", 0.02)
    async with opened.exchange("GET", f"{EVENTS}?after=2", headers=SSE) as exchange:
        async with asyncio.timeout(DEADLINE_S):
            assert await exchange.chunk() == b": keepalive\n\n"
            assert await exchange.chunk() == b": keepalive\n\n"
        await post(opened, PLAN)
        assert [seq for _, seq, _ in await read(exchange, 1)] == [3]
    lines = {"Accept": "application/x-ndjson"}
    async with opened.exchange("GET", f"{EVENTS}?after=2", headers=lines) as exchange:
        async with asyncio.timeout(DEADLINE_S):
            assert json.loads(await exchange.chunk())["type"] == "plan"
            assert await exchange.chunk() == b"\n"


async def test_a_stream_ends_with_its_session(opened: Api) -> None:
    """When the session ends, its streams end; what is stored can be read, and then there is no content."""
    await post(opened, PLAN)
    async with opened.exchange("GET", EVENTS, headers=SSE) as exchange:
        await read(exchange, 3)
        assert (await opened.ask("DELETE", SESSION)).status == 204
        async with asyncio.timeout(DEADLINE_S):
            assert await exchange.chunk() == b""
    assert [each["type"] for each in await stored(opened)][-1] == "plan"
    answer = await opened.ask("GET", EVENTS, headers=SSE | {"Last-Event-ID": "2"})
    assert answer.body.count(b"event: ") == 1
    answer = await opened.ask("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"})
    assert (answer.status, answer.body) == (204, b"")
    assert (await post(opened, PLAN, 410))["code"] == "session_gone"


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({}, "type"),
        ({"type": "stdout", "content": "x"}, "stdout"),
        ({"type": "plan"}, "steps"),
        ({"type": "plan", "steps": "read"}, "list"),
        ({"type": "plan", "steps": [1]}, "steps"),
        ({"type": "plan", "steps": ["x"] * 201}, "200"),
        ({"type": "step_start", "step": 1.5}, "step"),
        ({"type": "result"}, "success"),
        ({"type": "result", "success": "yes"}, "success"),
        ({"type": "observation", "content": "x", "other": 1}, "other"),
        ({"type": "test_output", "passed": -1}, "passed"),
        ({"type": "plan", "steps": [], "seq": 1}, "seq"),
        ({"type": "plan", "steps": [], "source": "broker"}, "source"),
        ({"type": "observation", "content": "x" * 65_000, "data": {"y": "y" * 1000}}, "limit"),
        ({"type": "observation", "content": "x" * 70_000}, "content"),
    ],
)
async def test_invalid_events_are_refused(opened: Api, event: dict[str, Any], message: str) -> None:
    """An event with an unknown type or an invalid field is refused, with the field, and is not stored."""
    error = await post(opened, event, 400)
    assert message in error["message"]
    assert len(await stored(opened)) == 2


async def test_bodies_that_are_no_objects(opened: Api) -> None:
    """A body that is no JSON object is refused."""
    for body in (b"[]", b"1", b"{", b"\xff", b'{"type": null}', b'{"type": "plan", "steps": {}}'):
        answer = await opened.ask("POST", EVENTS, body)
        assert (answer.status, answer.error["code"]) == (400, "bad_request"), body


async def test_posts_are_limited(opened: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session takes so many events in a minute, and then refuses them with the time to wait."""
    monkeypatch.setattr(service, "POSTS_PER_MINUTE", 3)
    for _ in range(3):
        await post(opened, PLAN)
    answer = await opened.ask("POST", EVENTS, PLAN)
    assert answer.status == 429
    assert int(answer.headers["retry-after"]) >= 1
    await opened.ask("POST", "/api/v1/sessions", {"session_id": "other"})
    answer = await opened.ask("POST", "/api/v1/sessions/other/events", PLAN)
    assert answer.status == 201


async def test_old_events_are_forgotten(opened: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest events are kept, in number and size; `seq` goes on."""
    monkeypatch.setattr(session_log, "MAX_EVENTS", 5)
    for step in range(10):
        await post(opened, {"type": "step_start", "step": step})
    assert [each["seq"] for each in await stored(opened)] == [8, 9, 10, 11, 12]
    monkeypatch.setattr(session_log, "MAX_BYTES", 1_000)
    await post(opened, {"type": "observation", "content": "x" * 800})
    kept = [each["seq"] for each in await stored(opened)]
    assert kept in ([12, 13], [13])


async def test_readers_are_limited(opened: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session has so many readers at once; a reader that goes makes room."""
    monkeypatch.setattr(session_log, "MAX_READERS", 1)
    async with opened.exchange("GET", EVENTS, headers=SSE) as first:
        await read(first, 2)
        answer = await opened.ask("GET", EVENTS, headers=SSE)
        assert (answer.status, answer.error["code"]) == (429, "too_many_requests")
        first.hang_up()
    status = 429
    async with asyncio.timeout(DEADLINE_S):
        while status == 429:
            async with opened.exchange("GET", EVENTS, headers=SSE) as second:
                status = second.status
    assert status == 200


async def test_values_of_secrets_are_masked(api: Api) -> None:
    """The values of the session's secrets are in no event."""
    options = {"session_id": "s", "secrets": {"KEY": "very-hidden-value"}}
    await api.ask("POST", "/api/v1/sessions", options)
    answer = await post(api, {"type": "observation", "content": "it is very-hidden-value"})
    assert "very-hidden-value" not in json.dumps([answer, await stored(api)])


async def test_other_tenants_see_nothing(backend: FakeBackend, tmp_path: Any) -> None:
    """Another tenant, and a request without a token, can neither read nor post."""
    file = TokenFile(tmp_path / "tokens")
    other = file.create("other")
    keyring = Keyring(Tenants({}), "the-token", file)
    async with world(backend) as w, serving(w, keyring=keyring) as api:
        await api.ask("POST", "/api/v1/sessions", {"session_id": "s"})
        for method, body in (("GET", b""), ("POST", PLAN)):
            answer = await api.ask(method, EVENTS, body, token=other)
            assert (answer.status, answer.error["code"]) == (404, "not_found")
            assert (await api.ask(method, EVENTS, body, token=None)).status == 401
            unknown = await api.ask(method, "/api/v1/sessions/unknown/events", body)
            assert unknown.status == 404
        await api.ask("POST", "/api/v1/sessions", {"session_id": "s"}, token=other)
        await post(api, PLAN)
        events = (
            await api.ask("GET", EVENTS, headers={"Accept": "application/json"}, token=other)
        ).json
        assert events["last"] == 2
