"""The alert rules and the dashboard that operators get."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from kernelbroker_server.telemetry.events import ExecutionEnded, SessionClosed
from kernelbroker_server.telemetry.metrics import _GAUGES, Metrics

from tests.support.requires import requires

MONITORING = Path(__file__).parents[2] / "monitoring"


@requires("prometheus")
def test_alert_rules_fire_when_they_should() -> None:
    """Each alert has a series that fires it and one that does not, by Prometheus' own semantics."""
    command = ["promtool", "test", "rules", str(MONITORING / "alerts_test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (MONITORING / "alerts.yaml").read_text()
    tests = (MONITORING / "alerts_test.yaml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    assert len(alerts) == 7
    for alert in alerts:
        assert f"alertname: {alert}, exp_alerts: []" in tests
        assert f"alertname: {alert}\n" in tests


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
def test_only_metrics_that_the_broker_has_are_used(name: str) -> None:
    """Rules and panels name metrics of the broker."""
    text = Metrics(lambda: {gauge: {} for gauge in _GAUGES}).text().decode()
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    known |= {
        f"{each}{suffix}" for each in set(known) for suffix in ("_bucket", "_count", "_total")
    }
    used = set(re.findall(r"kernelbroker_\w+", (MONITORING / name).read_text()))
    assert used
    assert used <= known


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """It has panels with queries, and a data source to choose."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) == 12
    assert all(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


def test_variables_of_open_sessions_are_counted() -> None:
    """The gauge has the variables of each session after its last execution, until it ends."""
    metrics = Metrics(dict)

    def ended(session_id: str, variables: int | None) -> None:
        fields = {
            "tenant": "t",
            "template": "big",
            "session_id": session_id,
            "execution_id": "e",
            "language": "python",
            "code_sha256": "",
            "outcome": "success",
            "started_at": 0.0,
            "queued_s": 0.0,
            "total_s": 0.0,
            "output_bytes": 0,
            "variables": variables,
        }
        metrics.on_event(ExecutionEnded(**fields))  # type: ignore[arg-type]

    def value() -> float:
        found = re.search(r'active_variables{template="big"} (\S+)', metrics.text().decode())
        return float(found[1]) if found else 0.0

    for session_id, variables in (("a", 3), ("b", 4), ("a", 5), ("b", None)):
        ended(session_id, variables)
    assert value() == 9
    metrics.on_event(SessionClosed("t", "big", "a", "over"))
    assert value() == 4
