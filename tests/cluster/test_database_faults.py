"""A database that falls silent: nothing that was accepted is lost, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.cluster.support import brokers
from tests.e2e.support import BrokerProcess, call, until, whole_system
from tests.support.postgres import Relay, Server, relay

pytestmark = whole_system

JSON = "application/json"
PATIENCE_S = 30.0
"""Twice what the broker waits for one thing, and more."""


@pytest.fixture
def network(postgres: Server) -> Iterator[Relay]:
    with relay(postgres) as found:
        yield found


async def timed(
    broker: BrokerProcess, method: str, path: str, body: object = None
) -> tuple[int, str, float]:
    """The status and the text of an answer, and the seconds until it came."""
    begun = time.monotonic()
    status, answer = await call(broker, method, path, body)
    return status, str(answer), time.monotonic() - begun


async def test_a_silent_database(postgres: Server, network: Relay) -> None:
    """What cannot be stored is refused in time and leaves nothing; then all goes on."""
    with brokers(postgres) as cluster:
        cluster.use_database(network.url)
        broker = await asyncio.to_thread(cluster.start)
        assert (await call(broker, "POST", "/api/v1/sessions", {"session_id": "mine"}))[0] == 201
        submit = "/api/v1/sessions/mine/executions"
        run = "/api/v1/sessions/mine/exec"
        body = {"code": "open('first', 'w').close()"}
        assert (await call(broker, "POST", run, body, accept=JSON))[0] == 200
        network.silence()
        answers = await asyncio.gather(
            timed(broker, "POST", submit, {"code": "open('refused', 'w').close()"}),
            timed(broker, "POST", "/api/v1/sessions", {"session_id": "never"}),
            timed(broker, "GET", "/api/v1/ended-sessions"),
            timed(broker, "GET", "/health/live"),
        )
        for status, message, seconds in answers[:3]:
            assert (status, seconds < PATIENCE_S) == (503, True)
            assert "stored" in message or "database" in message
        assert (answers[3][0], answers[3][2] < 1) == (200, True)
        network.speak()

        async def works() -> bool:
            return (await call(broker, "POST", run, {"code": "1"}, accept=JSON))[0] == 200

        await until(works)
        _, found = await call(broker, "GET", "/api/v1/sessions")
        assert [each["session_id"] for each in found["sessions"]] == ["mine"]
        _, listed = await call(broker, "GET", "/api/v1/sessions/mine/files")
        assert "first" in str(listed)
        assert "refused" not in str(listed)

        async def one_is_leased() -> bool:
            _, pool = await call(broker, "GET", "/api/v1/pool/status")
            return bool(pool["busy_containers"] == 1)

        await until(one_is_leased)


@pytest.mark.long
async def test_the_end_of_a_broker(postgres: Server, network: Relay) -> None:
    """A broker ends in time though its database is silent."""
    with brokers(postgres) as cluster:
        cluster.use_database(network.url)
        broker = await asyncio.to_thread(cluster.start)
        assert (await call(broker, "POST", "/api/v1/sessions", {"session_id": "mine"}))[0] == 201
        network.silence()
        begun = time.monotonic()
        await asyncio.to_thread(broker.stop)
        assert time.monotonic() - begun < PATIENCE_S


async def test_what_was_accepted_is_stored(postgres: Server) -> None:
    """The next broker knows each cell that was accepted, though the first was killed with the answer."""
    with brokers(postgres) as cluster:
        broker = await asyncio.to_thread(cluster.start)
        assert (await call(broker, "POST", "/api/v1/sessions", {"session_id": "mine"}))[0] == 201
        answers = await asyncio.gather(
            *(
                call(broker, "POST", "/api/v1/sessions/mine/executions", {"code": "1"})
                for _ in range(8)
            )
        )
        broker.kill()
        assert [status for status, _ in answers] == [202] * 8
        later = await asyncio.to_thread(cluster.start)

        async def known() -> list[int]:
            paths = [f"/api/v1/executions/{found['execution_id']}" for _, found in answers]
            return [(await call(later, "GET", path))[0] for path in paths]

        async def all_are_known() -> bool:
            return await known() == [200] * 8

        await until(all_are_known)
