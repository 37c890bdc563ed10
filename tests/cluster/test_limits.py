"""The limits of a tenant hold for all brokers together."""

from __future__ import annotations

import asyncio
import json

from tests.cluster.support import brokers
from tests.e2e.support import call, until, whole_system
from tests.support.postgres import Server

pytestmark = whole_system

LIMITS = {"default": {"max_sessions": 3, "rate": 30}}


async def test_limits_of_a_tenant(postgres: Server) -> None:
    """Of openings at two brokers at once as many succeed as the limit allows; the rate is one for both."""
    with brokers(postgres, TENANTS=json.dumps(LIMITS)) as cluster:
        pair = await asyncio.gather(*(asyncio.to_thread(cluster.start) for _ in range(2)))
        names = [f"s{number}" for number in range(8)]
        answers = await asyncio.gather(
            *(
                call(pair[number % 2], "POST", "/api/v1/sessions", {"session_id": name})
                for number, name in enumerate(names)
            )
        )
        assert sorted(status for status, _ in answers) == [201] * 3 + [429] * 5
        name = answers[[status for status, _ in answers].index(201)][1]["session_id"]
        assert (await call(pair[0], "DELETE", f"/api/v1/sessions/{name}"))[0] == 204
        body = {"session_id": "again"}
        assert (await call(pair[1], "POST", "/api/v1/sessions", body))[0] == 201

        _, found = await call(pair[0], "GET", "/api/v1/sessions")
        first, second = found["sessions"][:2]
        used = 0

        async def is_refused() -> bool:
            nonlocal used
            statuses = []
            for broker, session in ((pair[0], first), (pair[1], second)):
                path = f"/api/v1/sessions/{session['session_id']}/exec"
                statuses.append((await call(broker, "POST", path, {"code": "1"}, accept=JSON))[0])
                used += statuses[-1] == 200
            return 429 in statuses

        await until(is_refused)
        assert used >= 30


JSON = "application/json"
