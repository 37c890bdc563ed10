"""The live state of a tenant's sessions, shared by all who watch them.

While somebody watches, the sessions are described several times a second, and watchers are woken when a
description has changed. The memory of their sandboxes is read less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.messages import SessionInfo

from ..service.tenant_service import TenantService
from ..sessions.session import Session
from .descriptions import (
    LAST_CODE_CHARS,
    LastExecution,
    confirmation_info,
    session_fields,
    utc_time,
)

logger = logging.getLogger(__name__)

_TICK_S = 0.2
_MEMORY_S = 2.0


class LiveSession(SessionInfo):
    """A session or a context.

    Attributes:
        memory: bytes that its sandbox uses; null if unknown.
        client, user: what it was opened through, and the name or the id of the token.
    """

    memory: int | None = None
    client: str = ""
    user: str = ""
    last_execution: LastExecution | None = None


class LiveTenant:
    """The sessions of one tenant. `watched` yields an event that is set when something has changed.

    Attributes:
        sessions: the JSON of each `LiveSession` by id.
        confirmations: the JSON of the list of confirmations that wait for a person.
    """

    def __init__(self, tenant: TenantService) -> None:
        self.sessions: Mapping[str, bytes] = {}
        self.confirmations = b"[]"
        self._tenant = tenant
        self._watchers: set[asyncio.Event] = set()
        self._memory: dict[str, int | None] = {}
        self._measured_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._watchers.add(changed)
        self._describe()
        changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="live sessions")
        try:
            yield changed
        finally:
            self._watchers.discard(changed)
            if not self._watchers:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        while True:
            try:
                if time.monotonic() - self._measured_at > _MEMORY_S:
                    sessions = self._tenant.sessions.list()  # a context has its session's sandbox
                    found = await asyncio.gather(*(each.memory() for each in sessions))
                    self._memory = {each.key: m for each, m in zip(sessions, found, strict=True)}
                    self._measured_at = time.monotonic()
                self._describe()
            except Exception:
                logger.exception("the live state of sessions could not be made")
            await asyncio.sleep(_TICK_S)

    def _describe(self) -> None:
        present = self._tenant.sessions.list_with_contexts()
        sessions = {each.id: encode(self._live(each)) for each in present}
        pending = self._tenant.confirmations.pending()
        confirmations = encode([confirmation_info(each) for each in pending])
        if (sessions, confirmations) == (self.sessions, self.confirmations):
            return
        self.sessions, self.confirmations = sessions, confirmations
        for watcher in self._watchers:
            watcher.set()

    def _live(self, session: Session) -> LiveSession:
        last = next(iter(list(session.executions.values())[-1:]), None)
        return LiveSession(
            **session_fields(session),
            memory=self._memory.get((session.session or session).key),
            client=session.origin.client,
            user=session.origin.user,
            last_execution=None
            if last is None
            else LastExecution(
                execution_id=last.id,
                state=last.state,
                accepted_at=utc_time(last.accepted_at),
                success=None if last.result is None else last.result.success,
                code=last.request.code[:LAST_CODE_CHARS],
                language=last.request.language or "python",
                client=last.origin.client,
                user=last.origin.user,
            ),
        )


class LiveTenants:
    """The live state of each tenant."""

    def __init__(self) -> None:
        self._by_name: dict[str, LiveTenant] = {}

    def of(self, tenant: TenantService) -> LiveTenant:
        """Return the live state of a tenant, the same object on every call."""
        if (found := self._by_name.get(tenant.name)) is None:
            found = self._by_name[tenant.name] = LiveTenant(tenant)
        return found
