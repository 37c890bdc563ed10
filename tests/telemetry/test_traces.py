"""OpenTelemetry spans, exported to a collector."""

from __future__ import annotations

import asyncio
import builtins
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernelbroker_server.telemetry.events import ExecutionEnded, RequestEnded, TelemetryEvent
from kernelbroker_server.telemetry.traces import Traces, tracing, valid_traceparent
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPServerRequest, ResponseStartLine
from tornado.netutil import bind_sockets

from tests.support.backend import FakeBackend
from tests.support.http import serving
from tests.support.waiting import until
from tests.support.world import world
from tests.telemetry.test_metrics import ended


def test_without_an_endpoint_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint nothing is imported."""

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        assert not name.startswith("opentelemetry")
        return real(name, *args, **kwargs)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert tracing({}, "1") is None


def test_missing_packages_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An endpoint without the packages is a warning that says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "1") is None
    assert "kernelbroker-server[traces]" in caplog.text


CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The example of the W3C's recommendation."""


@asynccontextmanager
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector on loopback, and the broker's exporter to it."""
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
    yield Collector(traces, got)
    server.stop()


class Collector:
    def __init__(self, traces: Traces, got: list[ExportTraceServiceRequest]) -> None:
        self.traces = traces
        self._got = got

    async def spans(self) -> list[Span]:
        """All spans; nothing can be exported afterwards."""
        await asyncio.to_thread(self.traces.close)
        return [
            span
            for export in self._got
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


async def test_requests_and_executions_are_exported_as_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collector gets a span for each request and execution, with its times, and no code."""
    async with collector(monkeypatch) as c:
        c.traces.on_event(RequestEnded("acme", "POST", "/api/v1/exec", 200, 0.5))
        c.traces.on_event(ended(outcome="timeout", started_at=100.0))
        request, execution = await c.spans()
    assert (request.name, execution.name) == ("POST /api/v1/exec", "execution")
    assert (execution.start_time_unix_nano, execution.end_time_unix_nano) == (
        100 * 10**9,
        102_500_000_000,
    )
    attributes = {each.key: each.value.string_value for each in execution.attributes}
    assert attributes["kernelbroker.tenant"] == "acme"
    assert attributes["kernelbroker.outcome"] == "timeout"
    assert execution.status.code == 2
    assert request.parent_span_id == execution.parent_span_id == b""


async def test_spans_continue_the_callers_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a `traceparent` spans are children of the caller; without its sampled flag none is exported."""
    unsampled = CALLER.removesuffix("01") + "00"
    async with collector(monkeypatch) as c:
        c.traces.on_event(RequestEnded("acme", "POST", "/api/v1/exec", 200, 0.5, CALLER))
        c.traces.on_event(ended(traceparent=CALLER))
        c.traces.on_event(ended(traceparent=unsampled))
        spans = await c.spans()
    assert [(span.trace_id.hex(), span.parent_span_id.hex()) for span in spans] == [
        ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    ] * 2


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        CALLER.upper(),
        CALLER + "-more",
        CALLER.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        CALLER + "\n",
    ],
)
def test_an_invalid_traceparent_is_ignored(header: str | None) -> None:
    """Only what the recommendation allows is taken over into logs and spans."""
    assert valid_traceparent(header) is None


async def test_a_requests_traceparent_reaches_its_events(backend: FakeBackend) -> None:
    """The header of a request is in its own event and in that of the execution that it submits."""
    seen: list[TelemetryEvent] = []
    async with (
        world(backend, observer=seen.append) as w,
        serving(w, observer=seen.append) as api,
    ):
        for headers in ({"traceparent": CALLER}, {}, {"traceparent": "invalid"}):
            answer = await api.ask("POST", "/api/v1/exec", {"code": "1"}, headers=headers)
            assert answer.status == 200
        await until(lambda: len([e for e in seen if isinstance(e, RequestEnded)]) == 3)
    for kind in (RequestEnded, ExecutionEnded):
        found = [event.traceparent for event in seen if isinstance(event, kind)]  # type: ignore[attr-defined]
        assert found == [CALLER, None, None]
