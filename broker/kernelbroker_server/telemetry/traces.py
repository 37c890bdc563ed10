"""OpenTelemetry spans of requests and executions.

They need `pip install 'kernelbroker-server[traces]'` and OTEL_EXPORTER_OTLP_ENDPOINT (or
..._TRACES_ENDPOINT); all other variables of the OpenTelemetry specification apply as well. Without an
endpoint nothing is imported.

A span continues the caller's trace if the request has a `traceparent` header
(https://www.w3.org/TR/trace-context/). Spans carry no code, no output, no values of variables, and of a
request's path only the pattern.

OpenTelemetry's Tornado instrumentation is not used: its spans carry whole paths and query strings, it knows
neither tenants nor executions, and it doubles the time of a small request.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Mapping
from typing import Any

from ..advice import install_extra
from .events import ExecutionEnded, RequestEnded, TelemetryEvent

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def valid_traceparent(header: str | None) -> str | None:
    """The header if it is a valid `traceparent`, else None: an invalid one must be ignored."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None


def tracing(environ: Mapping[str, str], version: str) -> Traces | None:
    """An exporter of spans, or None if no endpoint is set or the packages are missing."""
    if not any(environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        logger.warning(
            "an OpenTelemetry endpoint is set, but %s is not installed: %s",
            error.name,
            install_extra("traces"),
        )
        return None
    provider = TracerProvider(
        resource=Resource.create({"service.name": "kernelbroker", "service.version": version})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


class Traces:
    """Exports a span for each request and each execution, when it has ended. `on_event` is the observer."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("kernelbroker")

    def close(self) -> None:
        """Export the remaining spans. Blocks for some seconds if the collector does not answer."""
        self._provider.shutdown()

    def on_event(self, event: TelemetryEvent) -> None:
        match event:
            case RequestEnded():
                attributes = {
                    "http.request.method": event.method,
                    "http.route": event.route,
                    "http.response.status_code": event.status,
                    "kernelbroker.tenant": event.tenant or "",
                }
                name, started_at = f"{event.method} {event.route}", time.time() - event.seconds
                failed = event.status >= 500
                self._span(name, started_at, event.seconds, attributes, failed, event.traceparent)
            case ExecutionEnded():
                fields = dataclasses.asdict(event)
                del fields["started_at"], fields["traceparent"]
                attributes = {f"kernelbroker.{k}": v for k, v in fields.items() if v is not None}
                failed = event.outcome != "success"
                self._span(
                    "execution",
                    event.started_at,
                    event.total_s,
                    attributes,
                    failed,
                    event.traceparent,
                )

    def _span(
        self,
        name: str,
        started_at: float,
        seconds: float,
        attributes: Mapping[str, Any],
        failed: bool,
        traceparent: str | None,
    ) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {} if traceparent is None else {"traceparent": traceparent}
        start_ns = int(started_at * 1e9)
        span = self._tracer.start_span(
            name,
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            start_time=start_ns,
            attributes=dict(attributes),
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=start_ns + int(seconds * 1e9))
