"""Tenants over HTTP and WebSocket: each has its own sessions and limits, and none starves another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions.admission import Admission
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import Tenant, TenantLimits, Tenants
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
        self.tenants = Tenants(limits)

    def tenant_of(self, token: str) -> Tenant | None:
        return Tenant(token, self._limits.get(token, TenantLimits()))


@asynccontextmanager
async def tenants(
    backend: FakeBackend, admission: Admission | None = None, **limits: TenantLimits
) -> AsyncIterator[Api]:
    async with (
        world(backend, pool=PoolLimits(1, 20), admission=admission) as w,
        serving(w, keyring=Names(limits)) as api,
    ):
        yield api


async def test_pool_status_has_only_the_tenants_templates(backend: FakeBackend) -> None:
    """A tenant sees the pools of its own templates, and only their sums."""
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
async def test_another_tenants_session_is_not_found(
    backend: FakeBackend, method: str, path: str, body: Any
) -> None:
    """The session of another tenant is not found, open or closed."""
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


async def test_two_tenants_may_use_the_same_session_id(backend: FakeBackend) -> None:
    """Two tenants can use the same session id for different sessions."""
    async with tenants(backend) as api:
        for token in ("acme", "umbrella"):
            body = {"session_id": "mine", "metadata": {"of": token}}
            answer = await api.ask("POST", "/api/v1/sessions", body, token=token)
            assert answer.status == 201
        for token in ("acme", "umbrella"):
            answer = await api.ask("GET", "/api/v1/sessions/mine", token=token)
            assert answer.json["metadata"] == {"of": token}


async def test_max_sessions_of_a_tenant(backend: FakeBackend) -> None:
    """A tenant at its limit gets the advice to close a session; other tenants are not affected."""
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


async def test_a_template_of_others_is_unknown(backend: FakeBackend) -> None:
    """A template that the tenant may not use is unknown to it."""
    async with tenants(backend, acme=TenantLimits(templates=frozenset({"small"}))) as api:
        answer = await api.ask("POST", "/api/v1/sessions", {}, token="acme")
        assert answer.status == 400
        assert "no template 'default'" in answer.error["message"]


async def test_rate_of_a_tenant(backend: FakeBackend) -> None:
    """A tenant beyond its rate gets 429 with Retry-After, and is accepted again later."""
    now = [0.0]
    admission = Admission(50, 100, clock=lambda: now[0])
    async with tenants(backend, admission, acme=TenantLimits(rate=2)) as api:
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
    """Waiting tenants take turns, regardless of the length of their queues."""
    point = Breakpoint()
    backend.scripts["wait"] = point
    async with tenants(backend, Admission(1, 100)) as api:
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
            admission = api.world.admission
            await until(lambda: admission.waiting == 8)
            await until(lambda: api.world.pool.status().busy_containers == 9)
            group.create_task(run("umbrella", "mine"))
            await until(lambda: admission.waiting == 9)
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
async def test_websocket_origin_must_be_allowed(
    backend: FakeBackend, origin: str | None, allowed: bool
) -> None:
    """A page opens a WebSocket only from an allowed origin; programs send no origin."""
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
