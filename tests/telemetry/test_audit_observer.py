"""The records that telemetry events become in the audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelbroker_server.audit import Audit
from kernelbroker_server.service.policy import Policies, Policy
from kernelbroker_server.telemetry.audit_observer import AuditObserver

from tests.support.backend import fake_backend
from tests.support.http import serving
from tests.support.world import world

SECRET_CODE = "import os  # the-secret-code\nos.system(command)"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_events_are_recorded(tmp_path: Path) -> None:
    """Sessions, leases, executions, refused executions and refused requests are recorded."""
    path = tmp_path / "audit"
    audit = Audit(path)
    observer = AuditObserver(audit).on_event
    policies = Policies({"default": Policy("block")})
    async with (
        fake_backend() as backend,
        world(backend, observer=observer, policies=policies) as w,
        serving(w, observer=observer) as api,
    ):
        await api.ask("POST", "/api/v1/sessions", {"session_id": "mine"})
        await api.ask("POST", "/api/v1/sessions/mine/exec", {"code": "1", "execution_id": "e"})
        refused = await api.ask("POST", "/api/v1/sessions/mine/exec", {"code": SECRET_CODE})
        assert refused.status == 422
        await api.ask("POST", "/api/v1/sessions/mine/restart", {})
        await api.ask("DELETE", "/api/v1/sessions/mine")
        await api.ask("GET", "/api/v1/sessions", token="wrong")
    audit.close()
    found = records(path)
    assert [record["event"] for record in found] == [
        "session.lease",
        "session.open",
        "execution",
        "execution.refused",
        "session.replace",
        "session.lease",
        "session.close",
        "request.refused",
    ]
    assert all(record["time"].endswith("+00:00") for record in found)
    assert {record["tenant"] for record in found[:-1]} == {"default"}
    by_event = {record["event"]: record for record in found}
    assert by_event["execution"]["outcome"] == "success"
    assert by_event["execution.refused"]["policy"] == "block"
    assert by_event["session.replace"]["cause"] == "restart"
    assert by_event["session.close"]["reason"] == "its client closed it"
    assert by_event["request.refused"]["status"] == 401
    assert "the-secret-code" not in path.read_text()
