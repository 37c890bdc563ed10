"""The routes: paths and their handlers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from kernelbroker.protocol.messages import Identifier
from kernelbroker.protocol.operations import OperationName
from tornado.httputil import HTTPConnection, HTTPMessageDelegate
from tornado.routing import Matcher
from tornado.web import Application, RequestHandler

from . import (
    browsers,
    checkpoints,
    code_operations,
    confirmations,
    contexts,
    ended_sessions,
    events,
    executions,
    files,
    me,
    notebooks,
    operations,
    packages,
    ports,
    risk,
    session_events,
    sessions,
    status,
    tables,
    tickets,
    workspaces,
)
from .base import MAX_BODY_BYTES, Service, UnknownPath
from .openapi import document
from .websocket import SessionSocket

_PREFIX = "/api/v1"
_ONE = f"{_PREFIX}/sessions/{{session_id}}"
_PATTERNS = {
    "session_id": "[A-Za-z0-9_.-]{1,64}",
    "context_id": "[A-Za-z0-9_.-]{1,64}",
    "execution_id": "[A-Za-z0-9_.-]{1,64}",
    "workspace": "[A-Za-z0-9_.-]{1,64}",
    "checkpoint": "[A-Za-z0-9_.-]{1,64}",
    "confirmation": "[A-Za-z0-9_.-]{1,64}",
    "path": ".*",
    "port": "[0-9]{1,5}",
    "name": "[^/]*",
    "operation": "[a-z_]{1,40}",
    "action": "[a-z_]{1,40}",
}
"""Matches of the path parameters. Handlers validate them further."""
_TYPES = {
    "session_id": Annotated[Identifier, msgspec.Meta(description="of the session")],
    "context_id": Annotated[Identifier, msgspec.Meta(description="of the context")],
    "execution_id": Annotated[Identifier, msgspec.Meta(description="of the execution")],
    "workspace": Annotated[Identifier, msgspec.Meta(description="its name")],
    "checkpoint": Annotated[Identifier, msgspec.Meta(description="its name")],
    "confirmation": Annotated[Identifier, msgspec.Meta(description="of the confirmation")],
    "path": Annotated[str, msgspec.Meta(description="in the workspace, relative to /data")],
    "name": Annotated[str, msgspec.Meta(description="of the variable")],
    "operation": Annotated[OperationName, msgspec.Meta(description="its name")],
    "action": Annotated[
        Literal["navigate", "screenshot", "close"], msgspec.Meta(description="its name")
    ],
}
_PING_INTERVAL_S = 20

Route: TypeAlias = tuple[str | Matcher, type[RequestHandler], Mapping[str, Any]]

ROUTES: list[tuple[str, type[RequestHandler]]] = [
    (f"{_PREFIX}/exec", executions.Exec),
    (f"{_PREFIX}/executions", executions.AllExecutions),
    (f"{_PREFIX}/executions/{{execution_id}}", executions.LocatedExecution),
    (f"{_PREFIX}/executions/{{execution_id}}/events", executions.LocatedEvents),
    (f"{_PREFIX}/executions/{{execution_id}}/interrupt", executions.InterruptExecution),
    (f"{_PREFIX}/executions/{{execution_id}}/stdin", executions.AnswerInput),
    (f"{_PREFIX}/assess", risk.Assess),
    (f"{_PREFIX}/sessions", sessions.Sessions),
    (f"{_PREFIX}/ended-sessions", ended_sessions.EndedSessions),
    (_ONE, sessions.OneSession),
    (f"{_ONE}/exec", executions.SessionExec),
    (f"{_ONE}/interrupt", sessions.Interrupt),
    (f"{_ONE}/restart", sessions.Restart),
    (f"{_ONE}/contexts", contexts.Contexts),
    (f"{_ONE}/contexts/{{context_id}}", contexts.OneContext),
    (f"{_ONE}/contexts/{{context_id}}/exec", contexts.ContextExec),
    (f"{_ONE}/contexts/{{context_id}}/executions", contexts.ContextExecutions),
    (f"{_ONE}/contexts/{{context_id}}/interrupt", contexts.InterruptContext),
    (f"{_ONE}/contexts/{{context_id}}/restart", contexts.RestartContext),
    (f"{_ONE}/executions", executions.Executions),
    (f"{_ONE}/executions/{{execution_id}}", executions.OneExecution),
    (f"{_ONE}/executions/{{execution_id}}/events", executions.ExecutionEvents),
    (f"{_ONE}/events", session_events.SessionEvents),
    (f"{_ONE}/files", files.Files),
    (f"{_ONE}/files/{{path}}", files.OneFile),
    (f"{_ONE}/notebook", notebooks.SessionNotebook),
    (f"{_ONE}/packages", packages.Packages),
    (f"{_ONE}/project", code_operations.Project),
    (f"{_ONE}/operations/{{operation}}", code_operations.CodeOperation),
    (f"{_ONE}/complete", tables.Complete),
    (f"{_ONE}/variables", tables.Variables),
    (f"{_ONE}/variables/{{name}}", tables.OneVariable),
    (f"{_ONE}/checkpoint", checkpoints.SaveCheckpoint),
    (f"{_ONE}/fork", checkpoints.Fork),
    (f"{_PREFIX}/checkpoints", checkpoints.Checkpoints),
    (f"{_PREFIX}/checkpoints/{{checkpoint}}", checkpoints.OneCheckpoint),
    (f"{_PREFIX}/workspaces", workspaces.Workspaces),
    (f"{_PREFIX}/workspaces/{{workspace}}", workspaces.OneWorkspace),
    (f"{_PREFIX}/workspaces/{{workspace}}/files", workspaces.WorkspaceFiles),
    (f"{_PREFIX}/workspaces/{{workspace}}/files/{{path}}", workspaces.WorkspaceFile),
    (f"{_PREFIX}/confirmations", confirmations.Confirmations),
    (f"{_PREFIX}/confirmations/{{confirmation}}", confirmations.OneConfirmation),
    (f"{_PREFIX}/browser/{{action}}", browsers.ExternalBrowser),
    (f"{_PREFIX}/me", me.WhoAmI),
    (f"{_PREFIX}/pool/status", status.Pools),
    (f"{_PREFIX}/pool/{{name}}/drain", operations.DrainTemplate),
    (f"{_PREFIX}/pools", operations.AllPools),
    (f"{_PREFIX}/sandboxes", operations.Sandboxes),
    (f"{_PREFIX}/audit", operations.AuditLog),
    (f"{_PREFIX}/metrics/history", operations.LastHour),
    (f"{_PREFIX}/risky", operations.Risky),
    (f"{_PREFIX}/tickets", tickets.NewTicket),
    (f"{_PREFIX}/events", events.Events),
    (f"{_PREFIX}/ws", SessionSocket),
    (f"{_PREFIX}/openapi.json", status.OpenApiDocument),
    ("/health", status.Health),
    ("/health/live", status.Live),
    ("/health/ready", status.Ready),
    ("/metrics", status.MetricsText),
]

PROXIES: list[tuple[str, type[RequestHandler]]] = [
    (f"{_ONE}/ports/{{port}}/{{path}}", ports.Port),
]
"""The paths that are no calls of the API: what answers there is user code, by any method."""


class _Application(Application):
    """Tornado's application, with a record of unread request bodies."""

    def __init__(self, *args: Any, service: Service, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._unread_bodies = service.unread_bodies
        self._unauthenticated = service.unauthenticated
        self._cluster = service.cluster

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        start = super().start_request

        def answer() -> HTTPMessageDelegate:
            delegate = start(server_conn, request_conn)
            return self._unread_bodies.track(delegate, request_conn)

        if self._cluster is None:
            return answer()
        return self._cluster.start_request(answer, request_conn)


def make_application(service: Service, surfaces: Sequence[Route] = ()) -> Application:
    """The broker's HTTP application.

    Args:
        surfaces: routes of other protocols: paths, handlers, and their options besides `service`. They come
            before the native ones.
    """
    native = [*ROUTES, *PROXIES]
    handlers = [*surfaces, *((_pattern(path), handler, {}) for path, handler in native)]
    return _Application(
        [(path, handler, {"service": service, **options}) for path, handler, options in handlers],
        service=service,
        default_handler_class=UnknownPath,
        default_handler_args={"service": service},
        websocket_ping_interval=_PING_INTERVAL_S,
        websocket_ping_timeout=_PING_INTERVAL_S,
        websocket_max_message_size=MAX_BODY_BYTES,
        log_function=lambda _handler: None,
        openapi=partial(openapi_document, service.version),
        routes={handler: str(path) for path, handler, *_ in [*reversed(surfaces), *native]},
    )


@cache
def openapi_document(version: str) -> dict[str, Any]:
    """Return the OpenAPI document of the native API: 30 ms of work, which few brokers are asked for."""
    return document(ROUTES, _TYPES, version)


def _pattern(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda name: f"(?P<{name[1]}>{_PATTERNS[name[1]]})", path)
