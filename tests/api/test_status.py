"""What can be seen of a broker over HTTP: health, readiness and metrics."""

from __future__ import annotations

import asyncio

from kernelbroker_server.backends.base import LaunchError
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.telemetry.metrics import Metrics

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.http import Api, serving
from tests.support.waiting import until
from tests.support.world import world


async def test_ready(backend: FakeBackend) -> None:
    """Ready is who has a sandbox to give; alive is who answers."""
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
        await w.registries.drain("closing time")
        answer = await api.ask("GET", "/health/ready", token=None)
        assert answer.status == 503
        assert "shutting down" in answer.error["message"]
        assert (await api.ask("GET", "/health/live", token=None)).status == 200


async def test_not_ready_and_why(backend: FakeBackend) -> None:
    """Where launches fail the answer tells how."""

    async def fail(_: FakeSandbox) -> None:
        raise LaunchError("the image is missing")

    backend.on_launch = fail
    async with world(backend, pool=PoolLimits(1, 1)) as w, serving(w) as api:
        await until(lambda: w.pool.last_failure)
        answer = await api.ask("GET", "/health/ready", token=None)
        assert answer.status == 503
        assert "the image is missing" in answer.error["message"]


async def test_ready_with_no_spare(backend: FakeBackend) -> None:
    """Where none is kept free, sandboxes are launched for whoever comes: clients may be sent."""
    async with world(backend, pool=PoolLimits(0, 1)) as w, serving(w) as api:
        assert (await api.ask("GET", "/health/ready", token=None)).status == 200
        assert backend.launched == 0


async def test_metrics(backend: FakeBackend) -> None:
    """They are the operator's alone, and count what was done."""
    metrics = Metrics(dict)
    tokens = ("operator", "metrics-only")
    async with (
        world(backend, observer=metrics.notice) as w,
        serving(w, metrics=metrics, observer=metrics.notice, operator_tokens=tokens) as api,
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


async def test_no_metrics(api: Api) -> None:
    """A broker without them, or without an operator, says so."""
    assert (await api.ask("GET", "/metrics")).status == 401
