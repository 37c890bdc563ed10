"""How the sessions of an earlier broker become those of this one."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from kernelbroker.protocol.errors import Conflict

from ..backends.base import Sandbox
from ..pool.warm_sandbox import WarmSandbox
from ..telemetry.origin import Origin
from ..tenants.tenant import Tenant
from ..workspaces.store import Workspace
from .admission import TenantQueue
from .ids import new_id
from .progress import LeftExecution
from .saved_state import AsleepSession, SavedState
from .session import Session
from .session_factory import SessionFactory
from .store import EventStore, LeftSession, SessionRecord


class TakenOverSessions(ABC):
    """The base of `Registry`, which sets the attributes."""

    tenant: Tenant
    _factory: SessionFactory
    _queue: TenantQueue
    _store: EventStore
    _sessions: dict[str, Session]

    @abstractmethod
    def get(self, session_id: str) -> Session:
        """Return a session; see `Registry.get`."""

    @abstractmethod
    async def claim(self, record: SessionRecord, sandbox: Sandbox | None = None) -> Workspace:
        """Claim the workspace of a session; see `Registry.claim`."""

    async def adopt(
        self,
        left: LeftSession,
        workspace: Workspace,
        warm: WarmSandbox,
        running: LeftExecution | None,
    ) -> None:
        """Go on with a session of an earlier broker, which the store has restored."""
        session = self._factory.session(left.record, workspace, adopted=warm)
        await self._go_on(session, left, warm, running)

    async def adopt_context(
        self, left: LeftSession, warm: WarmSandbox, running: LeftExecution | None
    ) -> None:
        """Go on with a context of a session that was adopted."""
        assert left.record.options.context_of is not None
        session = self.get(left.record.options.context_of)
        context = self._factory.context(left.record, session, warm)
        session.add_context(context)
        await self._go_on(context, left, warm, running)

    async def _go_on(
        self, session: Session, left: LeftSession, warm: WarmSandbox, running: LeftExecution | None
    ) -> None:
        await session.open(adopted=True)
        self._sessions[session.id] = session
        for execution in session.go_on(running):
            if execution.was_left:
                await execution.begun.wait()
        warm.channel.release()  # nothing waits for what its kernel has sent
        if left.closing is not None:
            session.close_when_idle(left.closing)

    async def resume(self, asleep: AsleepSession, saved: SavedState) -> None:
        """Take over a session that an earlier broker left asleep.

        Raises:
            RequestError: its template, its files or its id are taken or gone.
        """
        options = asleep.options
        self._factory.pool(options.template, asleep.place)  # it is there
        if asleep.session_id in self._sessions:
            raise Conflict(f"session {asleep.session_id} is awake")
        record = SessionRecord(
            new_id(),
            self.tenant.name,
            asleep.session_id,
            options,
            asleep.opened_at,
            Origin(asleep.client, asleep.user),
        )
        asleep_at = self._queue.clock() - max(0.0, time.time() - asleep.asleep_at)
        session = self._factory.session(
            record, await self.claim(record), asleep_at=asleep_at, place=asleep.place
        )
        session.idle_timeout, session.max_lifetime = asleep.idle_timeout, asleep.max_lifetime
        session.resume(saved, asleep.awake)
        await self._store.continue_log(asleep.key, session.key)
        self._sessions[session.id] = session
