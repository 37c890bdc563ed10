"""Operators see sandboxes, pools, the audit log, risky code and the last hour; others do not."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.support import whole_system

from .conftest import TIMEOUT_MS, Console, OpenPage
from .test_watching import RISKY, see

pytestmark = whole_system

CALLS = [
    ("GET", "/sandboxes"),
    ("GET", "/pools"),
    ("GET", "/audit"),
    ("GET", "/metrics/history"),
    ("GET", "/risky"),
    ("POST", "/pool/default/drain"),
    ("DELETE", "/pool/default/drain"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_the_right_is_needed(console: Console, method: str, path: str) -> None:
    """A token without the operators' right is refused with 403, and the message says how to get it."""
    status, answer = console.call(method, path, token=console.bob)
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert "--operator" in answer["error"]["message"]


def test_pages_for_operators_are_hidden_from_others(console: Console, open_page: OpenPage) -> None:
    """Others have no links to these pages, and a link that was sent to them says what is missing."""
    page = open_page("#/audit", token=console.bob)
    see(page, ".empty-title", "for operators")
    expect(page.locator("a.nav-link")).to_have_text(["Sessions", "Confirmations"])


def test_sandboxes(console: Console, open_page: OpenPage) -> None:
    """Each sandbox is shown with its session, memory, processor time and age."""
    with console.session("seen") as session:
        session.run("1")
        _, listed = console.call("GET", "/sandboxes")
        (own,) = [each for each in listed["sandboxes"] if each["session"] == "seen"]
        assert own["tenant"] == "team"
        assert own["template"] == "default"
        assert (own["state"], own["kernel_status"]) == ("leased", "idle")
        assert own["memory_limit"] == 2 * 1024**3
        page = open_page("#/sandboxes")
        row = page.locator("tr", has_text="seen")
        for text in (own["worker_id"], "leased", "MB", "team"):
            expect(row).to_contain_text(text, timeout=TIMEOUT_MS)
        _, listed = console.call("GET", "/sandboxes")
        (own,) = [each for each in listed["sandboxes"] if each["session"] == "seen"]
        assert own["uptime"] > 0
        assert own["memory_usage"] > 10_000_000
        assert own["processor_time"] >= 0
        see(page, ".pool", "at most")


def test_draining_a_template(console: Console, open_page: OpenPage) -> None:
    """A drained template keeps its sessions and gets no new ones, until it is resumed."""
    with console.session("stays") as session:
        page = open_page("#/sandboxes")
        page.get_by_role("article", name="default").get_by_role("button", name="Drain").click()
        page.locator("dialog").get_by_role("button", name="Drain").click()
        see(page, ".pool .tag", "draining")
        status, answer = console.call("POST", "/sessions", {"session_id": "late"})
        assert status == 503
        assert "drains" in answer["error"]["message"]
        assert session.run("2").success
        page.locator(".pool").get_by_role("button", name="Resume").click()
        see(page, ".toast", "again")
        assert console.call("POST", "/sessions", {"session_id": "late"})[0] == 201
        assert console.call("DELETE", "/sessions/late")[0] == 204
    status, answer = console.call("POST", "/pool/none/drain")
    assert (status, answer["error"]["code"]) == (404, "not_found")


def test_the_audit_log_with_filters(console: Console, open_page: OpenPage) -> None:
    """Records are found by event, tenant, session and text, the latest first."""
    with console.session("audited") as session:
        session.run("3")
    status, found = console.call("GET", "/audit?session=audited&event=session&limit=2")
    assert status == 200
    kinds = [each["event"] for each in found["records"]]
    assert kinds == ["session.close", "session.open"] or kinds[0] == "session.close"
    before = found["records"][-1]["time"]
    _, older = console.call("GET", f"/audit?before={before.replace('+', '%2B')}&limit=500")
    assert all(each["time"] < before for each in older["records"])
    assert console.call("GET", "/audit?tenant=others&session=audited")[1]["records"] == []
    for limit in ("0", "x", "1001", "-1"):
        assert console.call("GET", f"/audit?limit={limit}")[0] == 400
    page = open_page("#/audit")
    page.get_by_role("textbox", name="Session").fill("audited")
    page.get_by_role("combobox", name="Event").select_option("execution")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=TIMEOUT_MS)
    see(page, "tbody tr", "success")
    page.get_by_role("textbox", name="Contains").fill("nothing has this")
    see(page, ".empty-title", "No records")


def test_the_last_hour_and_risky_code(console: Console, open_page: OpenPage) -> None:
    """Plots of the broker's own metrics, and the risky code of all tenants without the code itself."""
    console.call("POST", "/sessions", {"session_id": "risk"}, token=console.stranger)
    code = {"code": RISKY}
    assert console.call("POST", "/sessions/risk/exec", code, token=console.stranger)[0] == 409
    _, found = console.call("GET", "/risky")
    latest = found["risky"][0]
    assert (latest["tenant"], latest["session"], latest["mode"]) == ("others", "risk", "confirm")
    assert latest["level"] == "critical"
    assert "delete" in latest["rules"]
    assert "rm -rf" not in str(found)
    _, history = console.call("GET", "/metrics/history")
    assert history["interval"] == 10
    assert {"sessions", "running", "waiting", "leased", "idle", "succeeded", "memory"} <= set(
        history["series"]
    )
    assert {len(each) for each in history["series"].values()} == {len(history["time"])}
    page = open_page("#/metrics")
    expect(page.locator(".plot canvas")).to_have_count(6, timeout=TIMEOUT_MS)
    see(page, "tbody tr", "others")
    assert console.call("DELETE", "/sessions/risk", token=console.stranger)[0] == 204
