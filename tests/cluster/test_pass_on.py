"""Any broker takes any request: what another one owns is passed on to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import kernelbroker

from tests.chaos.victim import Victim
from tests.cluster.support import TOKEN
from tests.e2e.support import BrokerProcess, call, opened, whole_system
from tests.support.postgres import Server

pytestmark = whole_system

JSON = "application/json"
Pair = tuple[BrokerProcess, BrokerProcess]


async def test_rest_calls_reach_the_owner(pair: Pair) -> None:
    """A session of one broker is found, used, listed and closed at the other one."""
    one, other = pair
    status, session = await call(one, "POST", "/api/v1/sessions", {"session_id": "rest"})
    assert (status, session["session_id"]) == (201, "rest")
    path = "/api/v1/sessions/rest"
    status, answer = await call(
        other, "POST", f"{path}/exec", {"code": "x = 6 * 7\nprint(x)"}, accept=JSON
    )
    assert (status, answer["stdout"]) == (200, "42\n")
    status, answer = await call(one, "POST", f"{path}/exec", {"code": "print(x)"}, accept=JSON)
    assert (status, answer["stdout"]) == (200, "42\n")
    assert (await call(other, "GET", path))[0] == 200
    assert (await call(other, "POST", "/api/v1/sessions", {"session_id": "rest"}))[0] == 200
    assert (await call(other, "DELETE", path))[0] == 204
    for each in pair:
        status, error = await call(each, "GET", path)
        assert (status, error["error"]["code"]) == (410, "session_gone")


async def test_files_and_streams_reach_the_owner(pair: Pair) -> None:
    """Uploads and downloads of some MiB, and events as they come, pass through another broker."""
    one, other = pair
    await call(one, "POST", "/api/v1/sessions", {"session_id": "files"})
    async with kernelbroker.connect(other.url, TOKEN) as client:
        session = client.session("files", keep=True)
        async with session:
            data = bytes(range(256)) * 20_000
            await session.files.write("data.bin", data)
            assert await session.files.read("data.bin") == data
    async with opened(
        other,
        "POST",
        "/api/v1/sessions/files/exec",
        {"code": "import time\nprint('a', flush=True)"},
        accept="application/x-ndjson",
    ) as response:
        assert response.status == 200
        assert b'"a\\n"' in await response.rest()
    assert (await call(one, "DELETE", "/api/v1/sessions/files"))[0] == 204


async def test_websockets_reach_the_owner(pair: Pair) -> None:
    """A WebSocket at one broker carries the session of the other one, in both directions."""
    one, other = pair
    async with (
        kernelbroker.connect(one.url, TOKEN) as first,
        kernelbroker.connect(other.url, TOKEN) as second,
        first.session("ws") as mine,
    ):
        await mine.run("y = 'of the first'")
        async with second.session("ws", keep=True) as same:
            result = await same.run("print(y)")
            assert result.stdout == "of the first\n"
            results = await asyncio.gather(mine.run("print(1)"), same.run("print(2)"))
            assert [each.stdout for each in results] == ["1\n", "2\n"]


async def test_a_strange_hop_is_no_hop(pair: Pair) -> None:
    """The header between brokers is worth nothing without their secret, and a token is needed as ever."""
    _, other = pair
    hop = {"X-Kernelbroker-Hop": "1.1.abc"}
    status, _ = await call(other, "GET", "/api/v1/sessions", **hop)
    assert status == 200
    status, _ = await call(
        other, "GET", "/api/v1/sessions/unknown", Authorization="Bearer no", **hop
    )
    assert status == 401


async def test_clocks_that_differ(postgres: Server, tmp_path: Path) -> None:
    """Brokers whose clocks are hours apart answer each other at once: they share the database's time."""
    first, *_, last = Victim.cluster(tmp_path, postgres.new_database(), 3)
    try:
        for each in (first, last):
            each.start()
        first.jump(-5 * 3600)
        last.jump(7 * 3600)
        async with (
            kernelbroker.connect(first.url, first.token) as one,
            kernelbroker.connect(last.url, last.token) as other,
            one.session("early") as early,
            other.session("late"),
        ):
            for broker in (one, other):
                listed = await broker.sessions()
                assert sorted(each.session_id for each in listed) == ["early", "late"]
            await early.run("x = 1")
            async with other.session("early", keep=True) as same:
                assert (await same.run("x")).text == "1"
        for each in (first, last):
            assert "did not answer" not in each.log.read_text()
    finally:
        for each in (first, last):
            each.kill()


async def test_brokers_with_different_secrets(pair: Pair) -> None:
    """Who says to be a broker and proves it wrongly is not answered by asking the others on and on."""
    one, other = pair
    await call(one, "POST", "/api/v1/sessions", {"session_id": "elsewhere"})
    hop = {"X-Kernelbroker-Hop": "1.1.abc"}
    status, found = await call(other, "GET", "/api/v1/sessions", **hop)
    assert (status, found["sessions"]) == (200, [])
    status, found = await call(other, "GET", "/api/v1/sessions/elsewhere", **hop)
    assert (status, found["session_id"]) == (200, "elsewhere")
    assert (await call(one, "DELETE", "/api/v1/sessions/elsewhere"))[0] == 204


async def test_lists_have_the_sessions_of_all(pair: Pair) -> None:
    """Each broker lists the sessions of both, oldest first, as sessions and as Jupyter's kernels."""
    one, other = pair
    for number, each in enumerate((one, other, one)):
        await call(each, "POST", "/api/v1/sessions", {"session_id": f"listed{number}"})
    for each in pair:
        status, found = await call(each, "GET", "/api/v1/sessions")
        assert status == 200
        assert [s["session_id"] for s in found["sessions"]] == ["listed0", "listed1", "listed2"]
        status, kernels = await call(each, "GET", "/jupyter/api/kernels")
        assert len({kernel["id"] for kernel in kernels}) == 3
    for number in range(3):
        assert (await call(other, "DELETE", f"/api/v1/sessions/listed{number}"))[0] == 204


async def test_a_key_is_used_once_anywhere(pair: Pair) -> None:
    """Requests with one idempotency key, sent to both brokers at once, open one session."""
    answers = await asyncio.gather(
        *(
            call(each, "POST", "/api/v1/sessions", {}, **{"Idempotency-Key": "same"})
            for each in pair * 3
        )
    )
    assert {status for status, _ in answers} <= {200, 201}
    (session,) = {answer["session_id"] for _, answer in answers}
    assert (await call(pair[0], "DELETE", f"/api/v1/sessions/{session}"))[0] == 204


async def test_one_id_is_one_session(pair: Pair) -> None:
    """Clients that open the same id at both brokers at once share one session."""
    answers = await asyncio.gather(
        *(call(each, "POST", "/api/v1/sessions", {"session_id": "same"}) for each in pair * 3)
    )
    assert sorted(status for status, _ in answers) == [200] * 5 + [201]
    assert len({answer["created_at"] for _, answer in answers}) == 1
    assert (await call(pair[1], "DELETE", "/api/v1/sessions/same"))[0] == 204
    assert (await call(pair[0], "DELETE", "/api/v1/sessions/same"))[0] == 410


async def test_history_is_shared(pair: Pair) -> None:
    """Executions of a session that has ended are read at any broker, and found by their id."""
    one, other = pair
    await call(one, "POST", "/api/v1/sessions", {"session_id": "past"})
    path = "/api/v1/sessions/past"
    _, answer = await call(one, "POST", f"{path}/exec", {"code": "print('kept')"}, accept=JSON)
    name = answer["execution_id"]
    for _ in range(2):
        status, found = await call(other, "GET", f"/api/v1/executions/{name}")
        assert (status, found["execution_id"]) == (200, name)
        await call(one, "DELETE", path)
    status, found = await call(other, "GET", f"{path}/executions")
    assert [each["execution_id"] for each in found["executions"]] == [name]
