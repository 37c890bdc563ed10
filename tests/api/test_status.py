"""Health, readiness and metrics over HTTP."""

from __future__ import annotations

import asyncio
import time

import pytest
from kernelbroker_server.backends.base import LaunchError
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.supervisor import Supervisor
from kernelbroker_server.telemetry.metrics import Metrics

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.http import Api, serving
from tests.support.waiting import until
from tests.support.world import world


async def test_a_broker_with_a_sandbox_is_ready(backend: FakeBackend) -> None:
    """The broker is ready when it has a sandbox, and alive when it answers."""
    go_on = asyncio.Event()

    async def wait(_: FakeSandbox) -> None:
        await go_on.wait()

    backend.on_launch = wait
    async with world(backend) as w, serving(w) as api:
        assert (await api.ask("GET", "/health/live", token=None)).status == 200
        answer = await api.ask("GET", "/health/ready", token=None)
        assert answer.status == 503
        assert "being launched" in answer.error["message"]
        go_on.set()
        await until(lambda: w.pool.status().idle_containers)
        assert (await api.ask("GET", "/health/ready", token=None)).status == 200
        await w.tenants.drain("closing time")
        answer = await api.ask("GET", "/health/ready", token=None)
        assert answer.status == 503
        assert "shutting down" in answer.error["message"]
        assert (await api.ask("GET", "/health/live", token=None)).status == 200


async def test_not_ready_has_the_reason(backend: FakeBackend) -> None:
    """If launches fail, the answer has the reason."""

    async def fail(_: FakeSandbox) -> None:
        raise LaunchError("the image is missing")

    backend.on_launch = fail
    async with world(backend, pool=PoolLimits(1, 1)) as w, serving(w) as api:
        await until(lambda: w.pool.last_failure)
        answer = await api.ask("GET", "/health/ready", token=None)
        assert answer.status == 503
        assert "the image is missing" in answer.error["message"]


async def test_degraded_has_the_reasons(backend: FakeBackend) -> None:
    """While launches fail the broker is degraded and not ready; afterwards it recovers."""
    working = asyncio.Event()

    async def fail(_: FakeSandbox) -> None:
        if not working.is_set():
            raise LaunchError("the image is missing")

    backend.on_launch = fail
    for sizes in (PoolLimits(1, 1), PoolLimits(0, 1)):
        working.clear()
        async with (
            world(backend, pool=sizes, acquire_timeout=0.05) as w,
            serving(w) as api,
        ):
            if not sizes.min_size:  # nothing is launched before a request
                assert (await api.ask("POST", "/api/v1/sessions", {})).status == 503
            await until(lambda: w.pool.last_failure)
            health = (await api.ask("GET", "/health", token=None)).json
            assert health["status"] == "degraded"
            assert health["reasons"] == ["template default: the image is missing"]
            assert (await api.ask("GET", "/health/ready", token=None)).status == 503
            assert (await api.ask("GET", "/health/live", token=None)).status == 200
            working.set()
            if not sizes.min_size:
                await until(lambda: not w.pool.details().back_off_s)
                assert (await api.ask("GET", "/health/ready", token=None)).status == 200
                continue
            await until(lambda: not w.pool.last_failure)
            health = (await api.ask("GET", "/health", token=None)).json
            assert (health["status"], health["reasons"]) == ("ok", [])


async def test_problems_of_the_store_degrade_the_health(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with the event store is a reason in /health."""
    monkeypatch.setattr(api.world.store, "problems", lambda: ["a file is kept aside"])
    health = (await api.ask("GET", "/health", token=None)).json
    assert (health["status"], health["reasons"]) == ("degraded", ["a file is kept aside"])


async def test_degraded_names_a_restarted_task(backend: FakeBackend) -> None:
    """A task that failed and was restarted is named, without its error."""
    supervisor, failed = Supervisor(sleep=lambda _: asyncio.Event().wait()), asyncio.Event()

    async def fail() -> None:
        failed.set()
        raise RuntimeError("a secret path")

    async with world(backend) as w, serving(w, supervisor=supervisor) as api:
        supervisor.start("the sweeper", fail)
        await failed.wait()
        answer = await api.ask("GET", "/health", token=None)
        assert answer.json["status"] == "degraded"
        assert answer.json["tasks"] == [{"name": "the sweeper", "failures": 1}]
        assert b"secret" not in answer.body
        await supervisor.stop()


async def test_health_has_the_uptime(backend: FakeBackend) -> None:
    """/health has the number of seconds since the start."""
    async with world(backend) as w, serving(w, started_at=time.monotonic() - 1000) as api:
        health = (await api.ask("GET", "/health", token=None)).json
        assert 1000 <= health["uptime"] < 1100


async def test_ready_with_no_spare(backend: FakeBackend) -> None:
    """A pool that keeps no sandbox free is ready: it launches one on demand."""
    async with world(backend, pool=PoolLimits(0, 1)) as w, serving(w) as api:
        assert (await api.ask("GET", "/health/ready", token=None)).status == 200
        assert backend.launched == 0


async def test_metrics_need_the_operators_token(backend: FakeBackend) -> None:
    """Metrics need an operator's token and count requests and executions."""
    metrics = Metrics(dict)
    tokens = ("operator", "metrics-only")
    async with (
        world(backend, observer=metrics.on_event) as w,
        serving(w, metrics=metrics, observer=metrics.on_event, operator_tokens=tokens) as api,
    ):
        await api.ask("POST", "/api/v1/exec", {"code": "1"})
        await api.ask("GET", "/api/v1/sessions/none")
        for token in (None, "the-token", ""):
            assert (await api.ask("GET", "/metrics", token=token)).status == 401
        for token in tokens:
            answer = await api.ask("GET", "/metrics", token=token)
            assert answer.status == 200
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = answer.body.decode()
        assert (
            'kernelbroker_execution_seconds_count{outcome="success",template="default",'
            'tenant="default"} 1.0' in text
        )
        assert (
            'kernelbroker_http_request_seconds_count{method="GET",'
            'route="/api/v1/sessions/{session_id}",status="404"} 1.0' in text
        )
        assert (await api.ask("GET", "/api/v1/sessions", token="metrics-only")).status == 401


async def test_metrics_are_refused_without_an_operators_token(api: Api) -> None:
    """A broker without metrics or without an operator's token refuses."""
    assert (await api.ask("GET", "/metrics")).status == 401
