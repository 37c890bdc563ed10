"""The WebSocket that people watch: sessions as they change, and executions that are followed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from tests.support.backend import FakeBackend
from tests.support.http import TOKEN, Api, serving
from tests.support.waiting import DEADLINE_S
from tests.support.world import world


class Watcher:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def get(self, kind: str) -> Any:
        """Return the next message of this kind."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                message = json.loads(await self.connection.recv())
                if message["type"] == kind:
                    return message

    async def session(self, session_id: str) -> Any:
        """Return the next description of this session."""
        while (found := (await self.get("session"))["session"])["session_id"] != session_id:
            pass
        return found


@asynccontextmanager
async def watching(api: Api, token: str = TOKEN) -> AsyncIterator[Watcher]:
    headers = {"Authorization": f"Bearer {token}"}
    url = f"ws://127.0.0.1:{api.port}/api/v1/events"
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        yield Watcher(connection)


@pytest.fixture
async def opened_api(backend: FakeBackend) -> AsyncIterator[Api]:
    async with world(backend) as w, serving(w) as api:
        yield api


async def test_sessions_come_and_go(opened_api: Api) -> None:
    """All open sessions come first, then each that is new, has changed, or has ended."""
    api = opened_api
    await api.ask("POST", "/api/v1/sessions", {"session_id": "first"})
    async with watching(api) as watcher:
        listed = await watcher.get("sessions")
        assert [each["session_id"] for each in listed["sessions"]] == ["first"]
        assert listed["confirmations"] == []
        await api.ask("POST", "/api/v1/sessions", {"session_id": "second"})
        second = await watcher.session("second")
        assert second["last_execution"] is None
        await api.ask("POST", "/api/v1/sessions/second/exec", {"code": "1 + 1"})
        while (last := (await watcher.session("second"))["last_execution"]) is None:
            pass
        assert (last["code"], last["client"], last["user"]) == ("1 + 1", "rest", "default")
        await api.ask("DELETE", "/api/v1/sessions/first")
        assert (await watcher.get("session_closed"))["session_id"] == "first"


async def test_executions_are_followed_from_where_one_was(opened_api: Api) -> None:
    """Watched sessions name their executions; a followed one has its events, also after a `seq`."""
    api = opened_api
    await api.ask("POST", "/api/v1/sessions", {"session_id": "s"})
    async with watching(api) as watcher:
        await watcher.send(op="watch", session_id="s")
        assert (await watcher.get("executions"))["executions"] == []
        request = {"code": "print(1)", "execution_id": "e"}
        await api.ask("POST", "/api/v1/sessions/s/exec", request)
        execution = (await watcher.get("execution"))["execution"]
        assert (execution["execution_id"], execution["code"]) == ("e", "print(1)")
        await watcher.send(op="follow", session_id="s", execution_id="e")
        seen = [(await watcher.get("event"))["event"]]
        while seen[-1]["type"] != "result":
            seen.append((await watcher.get("event"))["event"])
        assert [each["seq"] for each in seen] == list(range(1, len(seen) + 1))
        await watcher.send(op="follow", session_id="s", execution_id="e", after=len(seen) - 1)
        assert (await watcher.get("event"))["event"] == seen[-1]
        await api.ask("DELETE", "/api/v1/sessions/s")
        assert (await watcher.get("ended"))["session_id"] == "s"
        await watcher.send(op="watch", session_id="s")
        (past,) = (await watcher.get("executions"))["executions"]
        assert past["execution_id"] == "e"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("garbage", "bad_request"),
        ("[]", "bad_request"),
        ('{"op": "open"}', "bad_request"),
        ('{"op": "watch"}', "bad_request"),
        ('{"op": "watch", "session_id": "../x"}', "bad_request"),
        ('{"op": "follow", "session_id": "s", "execution_id": "e", "after": -1}', "bad_request"),
        ('{"op": "watch", "session_id": "none"}', "not_found"),
        ('{"op": "follow", "session_id": "none", "execution_id": "e"}', "not_found"),
    ],
)
async def test_what_cannot_be_done_is_an_error(opened_api: Api, message: str, code: str) -> None:
    """An invalid operation is answered with an error, and the connection goes on."""
    async with watching(opened_api) as watcher:
        await watcher.connection.send(message)
        assert (await watcher.get("error"))["error"]["code"] == code
        await opened_api.ask("POST", "/api/v1/sessions", {"session_id": "later"})
        assert (await watcher.session("later"))["state"] == "idle"


async def test_what_one_connection_follows_is_bounded(opened_api: Api) -> None:
    """More than 128 things at a time are refused, and room is free again after `unwatch`."""
    api = opened_api
    await api.ask("POST", "/api/v1/sessions", {"session_id": "s"})
    async with watching(api) as watcher:
        tasks = {task for task in asyncio.all_tasks() if "_guarded" in repr(task)}
        for number in range(200):
            await watcher.send(op="watch", session_id="s")
            await watcher.send(op="unwatch", session_id=f"none{number}")
        await watcher.send(op="follow", session_id="none", execution_id="e")
        assert (await watcher.get("error"))["error"]["code"] == "not_found"
        assert len({t for t in asyncio.all_tasks() if "_guarded" in repr(t)}) <= len(tasks) + 3


async def test_a_token_or_a_ticket_is_needed(opened_api: Api) -> None:
    """Without a token the connection is refused, and so is a request that is no WebSocket."""
    with pytest.raises(InvalidStatus) as refused:
        async with watching(opened_api, "wrong"):
            pass
    assert refused.value.response.status_code == 401
    assert (await opened_api.ask("GET", "/api/v1/events")).status == 400
