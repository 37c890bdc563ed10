"""OpenTelemetry spans of executions and requests, where its packages are installed and an endpoint is set.

`pip install 'kernelbroker[traces]'` and OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT), as the
OpenTelemetry specification has it; all its other variables count as well. Without them, nothing is
imported and nothing is done. No span carries code, output or values of variables.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import Any

from .facts import ExecutionEnded, Fact, RequestEnded

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def tracing(environ: Mapping[str, str], version: str) -> Traces | None:
    """What records spans; None where nobody asked for it, or it cannot be had."""
    if not any(environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        logger.warning(
            "An OpenTelemetry endpoint is set, and %s is missing: pip install 'kernelbroker[traces]'",
            error.name,
        )
        return None
    provider = TracerProvider(
        resource=Resource.create({"service.name": "kernelbroker", "service.version": version})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


class Traces:
    """A span for each request and each execution, made when it has ended."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("kernelbroker")

    def close(self) -> None:
        """Send what is left; blocks for some seconds where nobody takes it."""
        self._provider.shutdown()

    def notice(self, fact: Fact) -> None:
        match fact:
            case RequestEnded():
                attributes = {
                    "http.request.method": fact.method,
                    "http.route": fact.route,
                    "http.response.status_code": fact.status,
                    "kernelbroker.tenant": fact.tenant or "",
                }
                name, began = f"{fact.method} {fact.route}", time.time() - fact.seconds
                self._span(name, began, fact.seconds, attributes, fact.status >= 500)
            case ExecutionEnded():
                told = dataclasses.asdict(fact)
                del told["started_at"]
                attributes = {f"kernelbroker.{k}": v for k, v in told.items() if v is not None}
                failed = fact.outcome != "success"
                self._span("execution", fact.started_at, fact.total_s, attributes, failed)

    def _span(
        self, name: str, start: float, seconds: float, attributes: Mapping[str, Any], failed: bool
    ) -> None:
        from opentelemetry.trace import Status, StatusCode

        start_ns = int(start * 1e9)
        span = self._tracer.start_span(name, start_time=start_ns, attributes=dict(attributes))
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=start_ns + int(seconds * 1e9))
