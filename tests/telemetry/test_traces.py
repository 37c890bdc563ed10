"""Traces: only where they are asked for; to a real collector's endpoint."""

from __future__ import annotations

import asyncio
import builtins
import sys
from typing import Any

import pytest
from kernelbroker_server.telemetry.facts import RequestEnded
from kernelbroker_server.telemetry.traces import tracing
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPServerRequest, ResponseStartLine
from tornado.netutil import bind_sockets

from tests.telemetry.test_metrics import ended


def test_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint nothing is imported."""

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        assert not name.startswith("opentelemetry")
        return real(name, *args, **kwargs)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert tracing({}, "1") is None


def test_not_installed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An endpoint without the packages is a warning that says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "1") is None
    assert "kernelbroker[traces]" in caplog.text


async def test_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector gets a span for each request and execution, with its times, and no code."""
    got: list[ExportTraceServiceRequest] = []

    def collect(request: HTTPServerRequest) -> None:
        got.append(ExportTraceServiceRequest.FromString(request.body))
        connection = request.connection
        assert connection is not None
        connection.write_headers(
            ResponseStartLine("HTTP/1.1", 200, "OK"), HTTPHeaders({"Content-Length": "0"})
        )
        connection.finish()

    server = HTTPServer(collect)
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    endpoint = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    traces = tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, "1.2")
    assert traces is not None
    traces.notice(RequestEnded("acme", "POST", "/api/v1/exec", 200, 0.5))
    traces.notice(ended(outcome="timeout", started_at=100.0))
    await asyncio.to_thread(traces.close)
    server.stop()
    spans = [
        span
        for export in got
        for resource in export.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    request, execution = spans
    assert (request.name, execution.name) == ("POST /api/v1/exec", "execution")
    assert (execution.start_time_unix_nano, execution.end_time_unix_nano) == (
        100 * 10**9,
        102_500_000_000,
    )
    told = {each.key: each.value.string_value for each in execution.attributes}
    assert (told["kernelbroker.tenant"], told["kernelbroker.outcome"]) == ("acme", "timeout")
    assert execution.status.code == 2
