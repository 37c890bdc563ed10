"""What a request is about, and the proof that a broker has sent it."""

from __future__ import annotations

import json

import pytest
from kernelbroker_server.cluster.hop import Hop
from kernelbroker_server.cluster.subjects import Kind, Subject, subject_of, subject_of_body

A = "/api/v1"


@pytest.mark.parametrize(
    ("method", "target", "headers", "expected"),
    [
        ("GET", f"{A}/sessions/one", {}, Subject(Kind.SESSION, "one")),
        ("POST", f"{A}/sessions/one/exec?x=/y", {}, Subject(Kind.SESSION, "one")),
        ("PUT", f"{A}/sessions/one/files/a%2Fb", {}, Subject(Kind.SESSION, "one")),
        ("POST", f"{A}/sessions/o/exec", {"Idempotency-Key": "k"}, Subject(Kind.SESSION, "o")),
        ("GET", "/e2b/sandboxes/one", {}, Subject(Kind.SESSION, "one")),
        ("GET", "/e2b/v2/sandboxes", {}, Subject(Kind.ANY)),
        ("GET", "/e2b/sandboxes/metrics", {}, Subject(Kind.ANY)),
        ("POST", "/execute", {"E2b-Sandbox-Id": "one"}, Subject(Kind.SESSION, "one")),
        ("GET", "/", {"Host": "49999-one.example.org"}, Subject(Kind.SESSION, "one")),
        ("GET", "/jupyter/t/tok/api/kernels/k/channels", {}, Subject(Kind.SESSION, "k")),
        ("GET", f"{A}/executions/e/events", {}, Subject(Kind.EXECUTION, "e")),
        ("POST", f"{A}/confirmations/c", {}, Subject(Kind.CONFIRMATION, "c")),
        ("POST", f"{A}/exec", {"Idempotency-Key": "k"}, Subject(Kind.KEY, "k")),
        ("POST", f"{A}/sessions", {}, Subject(Kind.BODY)),
        ("POST", "/mcp", {}, Subject(Kind.BODY)),
        ("GET", f"{A}/sessions", {}, Subject(Kind.ANY)),
        ("GET", f"{A}/ws", {}, Subject(Kind.ANY)),
        ("GET", "/health/ready", {}, Subject(Kind.LOCAL)),
        ("GET", f"{A}/sessions/{'x' * 65}", {}, Subject(Kind.ANY)),
    ],
)
def test_subject_of_a_head(
    method: str, target: str, headers: dict[str, str], expected: Subject
) -> None:
    """Path and headers of all protocols tell which session, execution or key a request is about."""
    assert subject_of(method, target, headers) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"session_id": "one"}, Subject(Kind.NEW_SESSION, "one")),
        ({"context_of": "one"}, Subject(Kind.SESSION, "one")),
        ({"code": "1", "confirm": "token"}, Subject(Kind.TOKEN, "token")),
        (
            {"method": "tools/call", "params": {"arguments": {"session_id": "m"}}},
            Subject(Kind.NEW_SESSION, "m"),
        ),
        ({"session_id": 1}, Subject(Kind.ANY)),
        ([1], Subject(Kind.ANY)),
    ],
)
def test_subject_of_a_body(body: object, expected: Subject) -> None:
    """A body that names a session, or a token, tells as well; anything else says nothing."""
    assert subject_of_body(json.dumps(body).encode()) == expected


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json(body: bytes) -> None:
    """A body that is not JSON is left to the handler, which refuses it."""
    assert subject_of_body(body) == Subject(Kind.ANY)


def test_a_hop_is_proved() -> None:
    """The proof holds for one method and path, with the secret, for a minute."""
    now = 1000.0
    hop = Hop("the secret of all brokers", lambda: now)
    value = hop.header(7, "GET", "/a")
    assert hop.is_valid(value, "GET", "/a")
    for now in (941.0, 1059.0):  # noqa: B007
        assert hop.is_valid(value, "GET", "/a")
    for now in (939.0, 1061.0):  # noqa: B007
        assert not hop.is_valid(value, "GET", "/a")
    now = 1000.0
    for wrong in (None, "", "1", "é.1.x", value[:-1], f"100{value}", f"{value}0"):
        assert not hop.is_valid(wrong, "GET", "/a")
    assert not hop.is_valid(value, "POST", "/a")
    assert not hop.is_valid(value, "GET", "/b")
    assert not Hop("another secret of brokers", lambda: now).is_valid(value, "GET", "/a")
