"""Which handler answers which path."""

from __future__ import annotations

from tornado.web import Application

from . import executions, sessions, status, workspaces
from .base import MAX_BODY_BYTES, Service, UnknownPath
from .websocket import SessionSocket

_PREFIX = "/api/v1"
_ID = "([A-Za-z0-9_.-]{1,64})"
_PING_INTERVAL_S = 20


def make_application(service: Service) -> Application:
    """The broker's HTTP application."""
    one = f"{_PREFIX}/sessions/{_ID}"
    routes: list[tuple[str, type]] = [
        (f"{_PREFIX}/exec", executions.Exec),
        (f"{_PREFIX}/sessions", sessions.Sessions),
        (one, sessions.OneSession),
        (f"{one}/exec", executions.Exec),
        (f"{one}/interrupt", sessions.Interrupt),
        (f"{one}/restart", sessions.Restart),
        (f"{one}/executions", executions.Executions),
        (f"{one}/executions/{_ID}", executions.OneExecution),
        (f"{one}/executions/{_ID}/events", executions.ExecutionEvents),
        (f"{_PREFIX}/workspaces", workspaces.WorkspaceList),
        (f"{_PREFIX}/workspaces/{_ID}", workspaces.OneWorkspace),
        (f"{_PREFIX}/pool/status", status.PoolStatus),
        (f"{_PREFIX}/ws", SessionSocket),
        ("/health", status.Health),
    ]
    handlers = [(path, handler, {"service": service}) for path, handler in routes]
    return Application(
        handlers,
        default_handler_class=UnknownPath,
        default_handler_args={"service": service},
        websocket_ping_interval=_PING_INTERVAL_S,
        websocket_ping_timeout=_PING_INTERVAL_S,
        websocket_max_message_size=MAX_BODY_BYTES,
        log_function=lambda _handler: None,
    )
