"""Prometheus metrics. Names end in their unit (https://prometheus.io/docs/practices/naming/).

Label values are bounded: routes are patterns, and tenants after the first hundred share one value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .events import (
    ExecutionEnded,
    FileOperationEnded,
    LaunchEnded,
    LoopDelayed,
    RequestEnded,
    SandboxLeased,
    SandboxReplaced,
    SessionClosed,
    SessionEvent,
    SessionOpened,
    TelemetryEvent,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_TENANTS = 100
_OTHERS = "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counts telemetry events (`on_event` is the observer) and reads the gauges when it is scraped.

    Args:
        gauges: returns the current values: for each name of `_GAUGES` a number by label values.
    """

    def __init__(self, gauges: Callable[[], Mapping[str, Mapping[tuple[str, ...], float]]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(gauges, self._tenant))
        self._tenants: set[str] = set()
        self._requests = self._histogram(
            "http_request_seconds", "Time to answer a request", "method", "route", "status"
        )
        self._queued = self._histogram(
            "execution_queued_seconds", "Time until a kernel took an execution", "tenant"
        )
        self._executions = self._histogram(
            "execution_seconds",
            "Time from taken by a kernel to result",
            "tenant",
            "template",
            "outcome",
        )
        self._output = self._counter("output_bytes", "Bytes of executions' events", "tenant")
        self._leases = self._histogram(
            "lease_seconds", "Time until a session had a sandbox", "template"
        )
        self._restarts = self._counter(
            "kernel_restarts", "Kernels replaced within a session", "template", "cause"
        )
        self._launches = self._histogram(
            "launch_seconds", "Time until a sandbox was warm, or failed", "template", "outcome"
        )
        self._loop_delays = self._histogram(
            "event_loop_delay_seconds", "How late the event loop runs what is due"
        )
        self._opened = self._counter("sessions_opened", "Sessions opened", "tenant", "template")

        self._variables: dict[tuple[str, str], tuple[str, int]] = {}
        self._active_variables = Gauge(
            "active_variables",
            "Variables of open sessions after their last execution",
            ("template",),
            namespace="kernelbroker",
            registry=self._registry,
        )
        self._file_operations = self._histogram(
            "file_operation_seconds", "Time that file operations took", "operation", "outcome"
        )
        self._file_bytes = self._counter(
            "file_bytes", "Bytes of files and tables moved", "tenant", "operation"
        )

    def _count_variables(self, event: SessionEvent, count: int | None) -> None:
        """Keep the number of variables of an open session; None if it has ended."""
        key = event.tenant, event.session_id
        template, before = self._variables.pop(key, (event.template, 0))
        if count is not None:
            self._variables[key] = template, count
        self._active_variables.labels(template).inc((count or 0) - before)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def on_event(self, event: TelemetryEvent) -> None:
        match event:
            case RequestEnded():  # not by tenant, which would make too many series
                self._requests.labels(event.method, event.route, str(event.status)).observe(
                    event.seconds
                )
            case LoopDelayed():
                self._loop_delays.observe(max(event.seconds, 0))
            case SessionOpened():
                self._opened.labels(self._tenant(event.tenant), event.template).inc()
            case SandboxLeased():
                self._leases.labels(event.template).observe(event.seconds)
            case SandboxReplaced():
                self._restarts.labels(event.template, event.cause).inc()
            case LaunchEnded():
                outcome = "failure" if event.failure else "success"
                self._launches.labels(event.template, outcome).observe(event.seconds)
            case SessionClosed():
                self._count_variables(event, None)
            case ExecutionEnded():
                if event.variables is not None:
                    self._count_variables(event, event.variables)
                tenant = self._tenant(event.tenant)
                taken_s = max(0.0, event.total_s - event.queued_s)
                self._queued.labels(tenant).observe(event.queued_s)
                self._executions.labels(tenant, event.template, event.outcome).observe(taken_s)
                self._output.labels(tenant).inc(event.output_bytes)
            case FileOperationEnded():
                self._file_operations.labels(event.operation, event.outcome).observe(event.seconds)
                if event.size:
                    tenant = self._tenant(event.tenant)
                    self._file_bytes.labels(tenant, event.operation).inc(event.size)

    def _tenant(self, name: str) -> str:
        if name not in self._tenants:
            if len(self._tenants) >= _MAX_TENANTS:
                return _OTHERS
            self._tenants.add(name)
        return name

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="kernelbroker", registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            name, text, labels, namespace="kernelbroker", buckets=_SECONDS, registry=self._registry
        )


_GAUGES = {
    "sandbox_memory_bytes": ("Memory that the sandboxes of each pool use", ("template",)),
    "sandbox_memory_limit_bytes": ("Memory that the sandboxes of each pool may use", ("template",)),
    "sandboxes": ("Sandboxes of each pool by state", ("template", "state")),
    "pool_waiters": ("Callers that wait for a sandbox", ("template",)),
    "sessions": ("Sessions that are open", ("tenant",)),
    "executions": ("Executions that wait or run", ("tenant", "state")),
}


class _Gauges(Collector):
    def __init__(
        self,
        read: Callable[[], Mapping[str, Mapping[tuple[str, ...], float]]],
        tenant: Callable[[str], str],
    ) -> None:
        self._read = read
        self._tenant = tenant

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for name, values in self._read().items():
            text, labels = _GAUGES[name]
            family = GaugeMetricFamily(f"kernelbroker_{name}", text, labels=labels)
            sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
            for given, value in values.items():
                named = zip(labels, given, strict=True)
                sums[tuple(self._tenant(v) if k == "tenant" else v for k, v in named)] += value
            for label_values, value in sums.items():
                family.add_metric(label_values, value)
            yield family
