"""Requests, and the operations derived from them."""

from __future__ import annotations

from kernelbroker.protocol.messages import (
    Execute,
    ExecutionRequest,
    Open,
    SandboxLimits,
    SessionOptions,
)


def test_an_execute_operation_gives_its_request() -> None:
    """`request` returns all fields of the request, and none of the operation."""
    fields = {
        "code": "print('\ud800')",
        "execution_id": "e1",
        "language": "shell",
        "timeout": 3.5,
        "cwd": "below",
        "env": {"A": "1"},
        "secrets": {"B": "2"},
        "result_var": "df",
        "preview_rows": 3,
        "on_error": "keep",
        "on_disconnect": "interrupt",
        "confirm": "token",
        "callback_url": "https://hooks.example.org/",
        "template": "box",
    }
    assert set(fields) == set(ExecutionRequest.__struct_fields__)
    request = Execute(**fields, allow_stdin=True, op_id="7").request()
    assert type(request) is ExecutionRequest
    assert request == ExecutionRequest(**fields)


def test_an_open_operation_gives_its_options() -> None:
    """`options` returns all fields of the options."""
    fields = {
        "session_id": "s1",
        "template": "small",
        "workspace": "w1",
        "workspace_retention": 60.0,
        "env": {"A": "1"},
        "secrets": {"B": "2"},
        "cwd": "below",
        "metadata": {"any": ["thing", 1, None]},
        "idle_timeout": 5.0,
        "max_lifetime": 6.0,
        "from_checkpoint": "c1",
        "language": "shell",
        "on_error": "keep",
        "context_of": "s0",
        "on_expiry": "sleep",
        "layout": None,
        "limits": SandboxLimits(),
        "project": None,
    }
    assert set(fields) == set(SessionOptions.__struct_fields__)
    options = Open(**fields).options()
    assert type(options) is SessionOptions
    assert options == SessionOptions(**fields)
