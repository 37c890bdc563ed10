"""Makes the sessions of one tenant, and their contexts, with their leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kernelbroker.protocol.errors import BadRequest

from ..pool.runner import Pool
from ..pool.warm_sandbox import WarmSandbox
from ..supervisor import Supervisor
from ..telemetry.events import Observer, SessionEmitter
from ..workspaces.checkpoint_store import CheckpointStore
from ..workspaces.disk_room import DiskRoom
from ..workspaces.store import Workspace
from .admission import TenantQueue
from .lease import Lease
from .limits import SessionLimits
from .projects import FindProject, ProjectRoots, project_of
from .restoring import Source
from .routed_lease import RoutedLease
from .routes import AUTO, Routes
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
    routes: Routes
    checkpoints: CheckpointStore
    projects: ProjectRoots
    room: DiskRoom

    def session(
        self,
        record: SessionRecord,
        workspace: Workspace,
        source: Source | None = None,
        adopted: WarmSandbox | None = None,
        asleep_at: float | None = None,
        place: str | None = None,
    ) -> Session:
        """Make a session; `Lease` and `Session` describe the arguments.

        Args:
            place: the template where it begins, if it is routed.
        """
        options, emit = record.options, self._emitter(record)
        if adopted is not None:
            place = adopted.sandbox.spec.template
        pool = self.pool(options.template, place)
        project = self.project(record)
        lease: Lease
        if options.template == AUTO:
            lease = RoutedLease(
                self.routes,
                self.checkpoints,
                self.store,
                record.session_id,
                pool,
                options,
                workspace,
                record.tenant,
                emit,
                source,
                key=record.key,
                adopted=adopted,
            )
        else:
            lease = Lease(
                pool,
                options,
                workspace,
                record.tenant,
                emit,
                source,
                key=record.key,
                adopted=adopted,
                project=project,
            )
        return self._make(record, self.limits, lease, emit, asleep_at=asleep_at)

    def project(self, record: SessionRecord) -> FindProject | None:
        """What finds the directory of the host that a session works on; None if it has none."""
        asked = project_of(record.options)
        if asked is None or asked.path is None:
            return None
        return partial(self.projects.find, record.tenant, asked)

    def pool(self, template: str, place: str | None = None) -> Pool:
        """The pool where a session begins. Raises BadRequest if the tenant has no such template.

        Args:
            place: the template where it begins, if it is routed.
        """
        if template == AUTO:
            return self.routes.start() if place is None else self.pool(place)
        if template not in self.pools:
            known = ", ".join(sorted(self.pools))
            raise BadRequest(f"no template {template!r}; there are: {known}")
        return self.pools[template]

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
            self.room,
            asleep_at,
            context_of,
        )
