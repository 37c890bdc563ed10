"""Makes the sessions of one tenant, and their contexts, with their leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..pool.runner import Pool
from ..pool.warm_sandbox import WarmSandbox
from ..supervisor import Supervisor
from ..telemetry.events import Observer, SessionEmitter
from ..workspaces.store import Workspace
from .admission import TenantQueue
from .lease import Lease
from .limits import SessionLimits
from .restoring import Source
from .session import Session
from .store import EventStore, SessionRecord


@dataclass(frozen=True, slots=True)
class SessionFactory:
    """What all sessions of a tenant have in common.

    Attributes:
        on_ended: called when an open session ends, with the session and the reason.
    """

    pools: Mapping[str, Pool]
    limits: SessionLimits
    queue: TenantQueue
    store: EventStore
    observer: Observer
    supervisor: Supervisor
    on_ended: Callable[[Session, str], None]

    def session(
        self,
        record: SessionRecord,
        workspace: Workspace,
        source: Source | None = None,
        adopted: WarmSandbox | None = None,
        asleep_at: float | None = None,
    ) -> Session:
        """Make a session; `Lease` and `Session` describe the arguments."""
        options, emit = record.options, self._emitter(record)
        lease = Lease(
            self.pools[options.template],
            options,
            workspace,
            record.tenant,
            emit,
            source,
            key=record.key,
            adopted=adopted,
        )
        return self._make(record, self.limits, lease, emit, asleep_at=asleep_at)

    def context(
        self, record: SessionRecord, session: Session, adopted: WarmSandbox | None = None
    ) -> Session:
        """Make a context of a session. It does not fall asleep."""
        emit, limits = self._emitter(record), replace(self.limits, sleep_after=None)
        lease = session.context_lease(record.options, emit, record.key, adopted)
        return self._make(record, limits, lease, emit, context_of=session)

    def _emitter(self, record: SessionRecord) -> SessionEmitter:
        return SessionEmitter(
            self.observer, record.tenant, record.options.template, record.session_id
        )

    def _make(
        self,
        record: SessionRecord,
        limits: SessionLimits,
        lease: Lease,
        emit: SessionEmitter,
        *,
        asleep_at: float | None = None,
        context_of: Session | None = None,
    ) -> Session:
        return Session(
            record,
            limits,
            lease,
            self.queue,
            self.store,
            emit,
            self.on_ended,
            self.supervisor,
            asleep_at,
            context_of,
        )
