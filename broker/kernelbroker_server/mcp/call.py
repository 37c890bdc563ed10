"""One call of a tool: its tenant, its session, and what can be sent to the client meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kernelbroker.protocol.errors import NotFound, SessionGone
from kernelbroker.protocol.messages import SessionOptions
from mcp.server.context import ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..service import browsing
from ..service.sessions import SessionChange
from ..service.tenant_service import TenantService
from ..sessions.session import Session
from ..sessions.store import Entry, EventStore
from ..telemetry.origin import set_origin
from .endpoint import TENANT_KEY, USER_KEY

OPENED_BY: dict[str, Any] = {"opened_by": "mcp"}
"""In the metadata of sessions that tools open."""
_USED_ONCE = "used_once"
"""Also there while nothing has used a session but the call that had to open one."""
_REMEMBERED_S = 86_400.0
_KIND = "mcp"
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that tools need.

    Attributes:
        task_after: seconds after which a call becomes a task, for clients that know tasks.
        language: of what analyses say.
        model: writes code for analyses without code.
        task_ttl: seconds for which the result of a task can be read, at least.
        unnamed_idle_timeout: that of a session that only one call has used, which did not ask for one. Some
            clients make a connection for each call, and leave a session with each.
    """

    task_after: float = 5.0
    task_ttl: float = 86_400.0
    language: Literal["auto", "en", "zh"] = "auto"
    model: Callable[[str], Any] | None = None
    unnamed_idle_timeout: float = 300.0


class ConnectionMemory:
    """What is remembered for a connection of the older revisions, in the event store.

    Clients of 2026-07-28 have no connections: nothing is remembered for them.
    """

    def __init__(self, store: EventStore, tenant: str, connection: str | None) -> None:
        self._store = store
        self._tenant = tenant
        self._connection = connection

    def get(self, name: str) -> str | None:
        if self._connection is None:
            return None
        entry = self._store.entry(_KIND, self._tenant, f"{self._connection}:{name}")
        return None if entry is None else entry.value.decode()

    def set(self, name: str, value: str) -> None:
        if self._connection is not None and self.get(name) != value:
            until = time.time() + _REMEMBERED_S
            key = f"{self._connection}:{name}"
            self._store.put_entry(Entry(_KIND, self._tenant, key, value.encode(), until))


class Call:
    """One call.

    Attributes:
        tenant: the use cases of the tenant whose token was sent.
        is_modern: the client speaks 2026-07-28 or later.
        session_id: the session that the call works in, once `session` has returned.
    """

    def __init__(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: CallToolRequestParams,
        store: EventStore,
        options: Options,
    ) -> None:
        self.ctx = ctx
        self.params = params
        self.store = store
        self.options = options
        self.tenant = tenant_of(ctx)
        assert ctx.request is not None, "it came over HTTP"
        set_origin("mcp", ctx.request.scope[USER_KEY])
        self.is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.session_id: str | None = None
        self.memory = memory_of(ctx, store)
        self._progress = 0.0

    async def session(self, session_id: str | None, *, browser: bool = False) -> Session:
        """Return the named session, the last one of this connection, or a new one.

        Args:
            browser: it must have a browser, unless it is the named one.

        Raises:
            Conflict: no template has a browser.
            NotFound, SessionGone: the named session is not open.
            TooManyRequests, Unavailable: no session can be opened now.
        """
        sessions = self.tenant.sessions
        found: Session | None = None
        if session_id is not None:
            self.session_id = session_id
            found = await sessions.resolve(session_id)
        elif (last := self.memory.get("session")) is not None:
            with contextlib.suppress(NotFound, SessionGone):
                found = await sessions.resolve(last)
            if browser and found is not None and not browsing.has_browser(found):
                found = None
        limits = self.tenant.registry.limits
        usual = min(limits.idle_timeout, limits.max_lifetime)
        if found is None:
            options = SessionOptions(
                metadata=OPENED_BY | {_USED_ONCE: True},
                idle_timeout=min(usual, self.options.unnamed_idle_timeout),
            )
            if browser:
                options.template = sessions.browser_template()
            found, _ = await sessions.open(options)
        elif _USED_ONCE in found.options.metadata:
            metadata = {k: v for k, v in found.options.metadata.items() if k != _USED_ONCE}
            change = SessionChange(idle_timeout=usual, metadata=metadata)
            await sessions.change(found.id, change)
        self.use(found)
        return found

    def use(self, session: Session) -> None:
        """Make this the session of the call, and the connection's last one."""
        self.session_id = session.id
        self.memory.set("session", session.id)

    async def report(self, text: str) -> None:
        """Send output of a running cell: as progress if the client asked for it, and as a log message
        to clients of the older revisions."""
        self._progress += 1
        await self.ctx.session.report_progress(self._progress, None, text)
        level = self.memory.get("log_level") or "info"
        if not self.is_modern and _LEVELS.index(level) <= _LEVELS.index("info"):
            message = LoggingMessageNotificationParams(level="info", logger="output", data=text)
            notification = LoggingMessageNotification(params=message)
            await self.ctx.session.send_notification(notification, self.ctx.request_id)


def tenant_of(ctx: ServerRequestContext[Any, Any]) -> TenantService:
    """Return the use cases of the tenant whose token came with the request."""
    assert ctx.request is not None, "it came over HTTP"
    service = ctx.request.scope[TENANT_KEY]
    assert isinstance(service, TenantService)
    return service


def memory_of(ctx: ServerRequestContext[Any, Any], store: EventStore) -> ConnectionMemory:
    """Return what is remembered for the request's connection."""
    connection = None if ctx.request is None else ctx.request.headers.get("mcp-session-id")
    is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    return ConnectionMemory(store, tenant_of(ctx).name, None if is_modern else connection)
