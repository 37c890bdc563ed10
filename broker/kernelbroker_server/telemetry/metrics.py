"""Prometheus metrics, each with its unit in its name (https://prometheus.io/docs/practices/naming/).

Labels are bounded: routes are patterns, and tenants beyond the first hundred are counted together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .facts import (
    ExecutionEnded,
    Fact,
    LaunchEnded,
    RequestEnded,
    SandboxLeased,
    SandboxReplaced,
    SessionOpened,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_TENANTS = 100
_OTHERS = "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counts what it is told, and looks at `gauges` when it is asked.

    Args:
        gauges: what there is now: by metric's name (of `_GAUGES`), a number by its label's values.
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
            "execution_seconds", "Time from taken to result", "tenant", "template", "outcome"
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
        self._opened = self._counter("sessions_opened", "Sessions opened", "tenant", "template")

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def notice(self, fact: Fact) -> None:
        match fact:
            case RequestEnded():  # by tenant as well it would be too many series
                self._requests.labels(fact.method, fact.route, str(fact.status)).observe(
                    fact.seconds
                )
            case SessionOpened():
                self._opened.labels(self._tenant(fact.tenant), fact.template).inc()
            case SandboxLeased():
                self._leases.labels(fact.template).observe(fact.seconds)
            case SandboxReplaced():
                self._restarts.labels(fact.template, fact.cause).inc()
            case LaunchEnded():
                outcome = "failure" if fact.failure else "success"
                self._launches.labels(fact.template, outcome).observe(fact.seconds)
            case ExecutionEnded():
                tenant = self._tenant(fact.tenant)
                taken_s = max(0.0, fact.total_s - fact.queued_s)
                self._queued.labels(tenant).observe(fact.queued_s)
                self._executions.labels(tenant, fact.template, fact.outcome).observe(taken_s)
                self._output.labels(tenant).inc(fact.output_bytes)

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
    "sandboxes": ("Sandboxes of each pool, by state", ("template", "state")),
    "pool_waiters": ("Sessions that wait for a sandbox", ("template",)),
    "sessions": ("Sessions that are open", ("tenant",)),
    "executions": ("Executions that wait or run", ("tenant", "state")),
}


class _Gauges(Collector):
    def __init__(
        self,
        look: Callable[[], Mapping[str, Mapping[tuple[str, ...], float]]],
        tenant: Callable[[str], str],
    ) -> None:
        self._look = look
        self._tenant = tenant

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for name, values in self._look().items():
            text, labels = _GAUGES[name]
            family = GaugeMetricFamily(f"kernelbroker_{name}", text, labels=labels)
            sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
            for given, value in values.items():
                named = zip(labels, given, strict=True)
                sums[tuple(self._tenant(v) if k == "tenant" else v for k, v in named)] += value
            for label_values, value in sums.items():
                family.add_metric(label_values, value)
            yield family
