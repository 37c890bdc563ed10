"""Prometheus metrics, and their bounded labels."""

from __future__ import annotations

import pytest
from kernelbroker_server.telemetry import metrics as metrics_module
from kernelbroker_server.telemetry.events import (
    ExecutionEnded,
    LaunchEnded,
    RequestEnded,
    SandboxLeased,
    SandboxReplaced,
    SessionOpened,
    TelemetryEvent,
    combine_observers,
)
from kernelbroker_server.telemetry.metrics import Metrics
from prometheus_client.parser import text_string_to_metric_families


def ended(**changed: object) -> ExecutionEnded:
    values = {
        "tenant": "acme",
        "template": "default",
        "session_id": "s",
        "execution_id": "e",
        "language": "python",
        "code_sha256": "0" * 64,
        "outcome": "success",
        "started_at": 0.0,
        "queued_s": 0.5,
        "total_s": 2.5,
        "output_bytes": 100,
    }
    return ExecutionEnded(**{**values, **changed})  # type: ignore[arg-type]


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """The values of a metric, by the values of its labels, in the order of the labels' names."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = {n: v for n, v in sample.labels.items() if n != "le"}
            if "le" not in sample.labels:
                found[(sample.name, *(labels[name] for name in sorted(labels)))] = sample.value
    return found


def test_events_are_counted() -> None:
    """Each event is in its own metric, in seconds and bytes."""
    metrics = Metrics(lambda: {"sessions": {("acme",): 3}})
    whose = ("acme", "default", "s")
    for fact in (
        ended(),
        ended(outcome="timeout", output_bytes=5),
        RequestEnded("acme", "GET", "/api/v1/sessions", 200, 0.25),
        SessionOpened(*whose),
        SandboxLeased(*whose, "b", 0.5),
        SandboxReplaced(*whose, "out_of_memory"),
        LaunchEnded("default", 1.5, None),
        LaunchEnded("default", 60, "no image"),
    ):
        metrics.on_event(fact)
    seen = samples(metrics)
    assert seen["kernelbroker_execution_seconds_sum", "success", "default", "acme"] == 2.0
    assert seen["kernelbroker_execution_seconds_count", "timeout", "default", "acme"] == 1
    assert seen["kernelbroker_execution_queued_seconds_sum", "acme"] == 1.0
    assert seen["kernelbroker_output_bytes_total", "acme"] == 105
    assert seen["kernelbroker_http_request_seconds_sum", "GET", "/api/v1/sessions", "200"] == 0.25
    assert seen["kernelbroker_lease_seconds_sum", "default"] == 0.5
    assert seen["kernelbroker_kernel_restarts_total", "out_of_memory", "default"] == 1
    assert seen["kernelbroker_launch_seconds_sum", "success", "default"] == 1.5
    assert seen["kernelbroker_launch_seconds_sum", "failure", "default"] == 60
    assert seen["kernelbroker_sessions", "acme"] == 3


def test_the_number_of_tenant_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants after the first hundred share one label."""
    monkeypatch.setattr(metrics_module, "_MAX_TENANTS", 2)
    metrics = Metrics(lambda: {"sessions": {("a",): 1, ("b",): 2, ("x",): 3, ("y",): 4}})
    for tenant in ("a", "b", "c", "d", "a"):
        metrics.on_event(SessionOpened(tenant, "default", "s"))
    seen = {key[2]: v for key, v in samples(metrics).items() if key[0].endswith("opened_total")}
    assert seen == {"a": 2, "b": 1, "other": 2}
    there = {key[1]: v for key, v in samples(metrics).items() if key[0].endswith("r_sessions")}
    assert there == {"a": 1, "b": 2, "other": 7}


def test_an_observer_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The other observers are still called."""

    def failing(_: TelemetryEvent) -> None:
        raise RuntimeError("broken")

    metrics = Metrics(dict)
    combine_observers([failing, metrics.on_event])(ended())
    assert samples(metrics)["kernelbroker_output_bytes_total", "acme"] == 100
    assert "a telemetry observer failed" in caplog.text
