"""Tenants over HTTP and WebSocket: each sees its own, has its own limits, and starves nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions.gate import Gate
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import Tenant, TenantLimits
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.backend import FakeBackend
from tests.support.http import Answer, Api, serving
from tests.support.waiting import until
from tests.support.world import Breakpoint, world


class Names(Keyring):
    """A tenant's token is its name."""

    def __init__(self, limits: Mapping[str, TenantLimits]) -> None:
        self._limits = limits

    def tenant_of(self, token: str) -> Tenant | None:
        return Tenant(token, self._limits.get(token, TenantLimits()))


@asynccontextmanager
async def tenants(
    backend: FakeBackend, gate: Gate | None = None, **limits: TenantLimits
) -> AsyncIterator[Api]:
    async with (
        world(backend, pool=PoolLimits(1, 20), gate=gate) as w,
        serving(w, keyring=Names(limits)) as api,
    ):
        yield api


async def test_pools_that_one_may_use(backend: FakeBackend) -> None:
    """A tenant sees the pools of its own templates, and the sums of those alone."""
    none = TenantLimits(templates=frozenset())
    async with tenants(backend, outsider=none) as api:
        await api.world.open()
        for token, count, names in (("acme", 1, ["default"]), ("outsider", 0, [])):
            status = (await api.ask("GET", "/api/v1/pool/status", token=token)).json
            assert sorted(status["templates"]) == names
            assert status["busy_containers"] == count


CALLS: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("PATCH", "", {"metadata": {"a": 1}}),
    ("DELETE", "", None),
    ("POST", "/exec", {"code": "1"}),
    ("POST", "/interrupt", {}),
    ("POST", "/restart", {}),
    ("GET", "/executions", None),
    ("GET", "/executions/e", None),
    ("GET", "/executions/e/events", None),
    ("GET", "/files", None),
    ("GET", "/files/a", None),
    ("PUT", "/files/a", {}),
    ("DELETE", "/files/a", None),
    ("POST", "/files/a?op=mkdir", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
async def test_another_tenants_session(
    backend: FakeBackend, method: str, path: str, body: Any
) -> None:
    """To another tenant it is as if it did not exist, open or closed."""
    path = f"/api/v1/sessions/mine{path}"
    async with tenants(backend) as api:

        async def ask(token: str, *asked: Any) -> Answer:
            return await api.ask(*asked, token=token)

        await ask("acme", "POST", "/api/v1/sessions", {"session_id": "mine"})
        await ask("acme", "POST", "/api/v1/sessions/mine/exec", {"code": "1", "execution_id": "e"})
        unknown = (await ask("umbrella", method, path.replace("mine", "none"), body or b"")).error
        told = (await ask("umbrella", method, path, body or b"")).error
        assert told["code"] == "not_found"
        assert told["message"] == unknown["message"].replace("none", "mine")
        assert (await ask("umbrella", "GET", "/api/v1/sessions")).json == {"sessions": []}
        assert len((await ask("acme", "GET", "/api/v1/sessions")).json["sessions"]) == 1
        await ask("acme", "DELETE", "/api/v1/sessions/mine")
        assert (await ask("acme", "GET", "/api/v1/sessions/mine")).status == 410
        assert (await ask("umbrella", method, path, body or b"")).status == 404


async def test_the_same_id_twice(backend: FakeBackend) -> None:
    """Two tenants may give their sessions the same id, and have each their own."""
    async with tenants(backend) as api:
        for token in ("acme", "umbrella"):
            body = {"session_id": "mine", "metadata": {"of": token}}
            answer = await api.ask("POST", "/api/v1/sessions", body, token=token)
            assert answer.status == 201
        for token in ("acme", "umbrella"):
            answer = await api.ask("GET", "/api/v1/sessions/mine", token=token)
            assert answer.json["metadata"] == {"of": token}


async def test_as_many_sessions_as_it_may(backend: FakeBackend) -> None:
    """A tenant that has them all is told to close one; another is not concerned."""
    async with tenants(backend, acme=TenantLimits(sessions=2)) as api:
        opening = [api.ask("POST", "/api/v1/sessions", {}, token="acme") for _ in range(5)]
        answers = await asyncio.gather(*opening)
        assert sorted(answer.status for answer in answers) == [201, 201, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status == 429)
        assert "close one" in refused.error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert (await api.ask("POST", "/api/v1/exec", {"code": "1"}, token="acme")).status == 429
        assert (await api.ask("POST", "/api/v1/sessions", {}, token="umbrella")).status == 201
        mine = next(answer for answer in answers if answer.status == 201).json["session_id"]
        await api.ask("DELETE", f"/api/v1/sessions/{mine}", token="acme")
        assert (await api.ask("POST", "/api/v1/sessions", {}, token="acme")).status == 201


async def test_only_its_templates(backend: FakeBackend) -> None:
    """A template that is not the tenant's is none to it."""
    async with tenants(backend, acme=TenantLimits(templates=frozenset({"small"}))) as api:
        answer = await api.ask("POST", "/api/v1/sessions", {}, token="acme")
        assert answer.status == 400
        assert "no template 'default'" in answer.error["message"]


async def test_rate(backend: FakeBackend) -> None:
    """Who submits more than its rate is told when to come again; time lets it in again."""
    now = [0.0]
    gate = Gate(50, 100, clock=lambda: now[0])
    async with tenants(backend, gate, acme=TenantLimits(rate=2)) as api:
        await api.ask("POST", "/api/v1/sessions", {"session_id": "mine"}, token="acme")

        async def run() -> Answer:
            path = "/api/v1/sessions/mine/exec"
            return await api.ask("POST", path, {"code": "1"}, token="acme")

        assert [(await run()).status for _ in range(3)] == [200, 200, 429]
        refused = await run()
        assert "2 executions a minute" in refused.error["message"]
        assert refused.headers["retry-after"] == "30"
        now[0] = 29.0
        assert (await run()).status == 429
        now[0] = 30.1
        assert [(await run()).status for _ in range(2)] == [200, 429]


async def test_one_tenant_does_not_starve_another(backend: FakeBackend) -> None:
    """Tenants that wait take turns, however many one of them has in line."""
    point = Breakpoint()
    backend.scripts["wait"] = point
    async with tenants(backend, Gate(1, 100)) as api:
        ran: list[str] = []

        async def run(token: str, session: str, code: str = "1") -> None:
            body = {"code": code, "session_id": session}
            assert (await api.ask("POST", "/api/v1/exec", body, token=token)).status == 200
            ran.append(token)

        async with asyncio.TaskGroup() as group:
            group.create_task(run("acme", "first", "wait"))
            await point.reached()
            for number in range(8):
                group.create_task(run("acme", f"s{number}"))
            gate = api.world.gate
            await until(lambda: gate.waiting == 8)
            await until(lambda: api.world.pool.status().busy_containers == 9)
            group.create_task(run("umbrella", "mine"))
            await until(lambda: gate.waiting == 9)
            point.go_on.set()
        assert ran.index("umbrella") <= 2
        assert len(ran) == 10


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://app.example.org", True),
        ("HTTPS://APP.example.org", True),
        ("http://127.0.0.1:{port}", True),
        (None, True),
        ("https://evil.example.org", False),
        ("http://app.example.org", False),
        ("https://app.example.org.evil.org", False),
        ("null", False),
    ],
)
async def test_origin(backend: FakeBackend, origin: str | None, allowed: bool) -> None:
    """A page opens a WebSocket only from an origin that is allowed; a program has none and may."""
    origins = frozenset({"https://app.example.org"})
    async with world(backend) as w, serving(w, allowed_origins=origins) as api:
        headers = {"Authorization": "Bearer the-token"}
        if origin is not None:
            headers["Origin"] = origin.format(port=api.port)
        url = f"ws://127.0.0.1:{api.port}/api/v1/ws"
        if allowed:
            async with connect(url, additional_headers=headers, proxy=None):
                pass
        else:
            with pytest.raises(InvalidStatus) as refused:
                async with connect(url, additional_headers=headers, proxy=None):
                    pass
            response = refused.value.response
            assert response.status_code == 403
            error = json.loads(response.body or b"")["error"]
            assert error["request_id"] == response.headers["X-Request-ID"]
