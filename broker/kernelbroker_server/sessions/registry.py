"""The sessions of one tenant: opens, finds and closes them, and remembers closed ones for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelbroker.protocol.errors import (
    NotFound,
    RequestError,
    Unavailable,
)
from kernelbroker.protocol.messages import SessionOptions

from ..backends.base import Sandbox, SandboxSpec
from ..pool.runner import Pool
from ..supervisor import Supervisor
from ..telemetry.events import Observer
from ..tenants.tenant import Tenant
from ..workspaces.store import Workspace, WorkspaceStore
from .admission import TenantQueue
from .contexts import context_options, expect_room, language_of, too_many
from .gone import GoneSessions, gone
from .ids import new_id
from .limits import SessionLimits, check_secrets
from .opening import Opening
from .projects import ProjectRoots, expect_project
from .reopening import same_session
from .restoring import Source
from .routes import Routes, Routing
from .session import Session
from .session_factory import SessionFactory
from .store import EventStore, SessionRecord
from .taken_over import TakenOverSessions

_LEAVE_S = 2.0
"""The time that executions have to end before they are left to the next broker."""


class Registry(TakenOverSessions):
    """Opens, finds and closes sessions.

    Attributes:
        pools: the pools of the templates that the tenant may use, by name.
        stopping: whether new sessions are refused.
    """

    def __init__(
        self,
        tenant: Tenant,
        pools: Mapping[str, Pool],
        limits: SessionLimits,
        queue: TenantQueue,
        workspaces: WorkspaceStore,
        store: EventStore,
        observer: Observer,
        supervisor: Supervisor,
        routing: Routing | None = None,
        projects: ProjectRoots | None = None,
    ) -> None:
        self.tenant = tenant
        self.pools = pools
        self.limits = limits
        self.stopping = False
        self._queue = queue
        self._workspaces = workspaces
        self._store = store
        self.routes = Routes(pools, routing)
        self._factory = SessionFactory(
            pools,
            limits,
            queue,
            store,
            observer,
            supervisor,
            self._ended,
            self.routes,
            workspaces.checkpoints,
            projects or ProjectRoots(),
            workspaces.room,
        )
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, Opening] = {}
        self._gone = GoneSessions(queue.clock)
        self._tasks: set[asyncio.Task[Any]] = set()
        """Sessions that are being opened or closed."""
        self._ending: set[asyncio.Future[None]] = set()
        """`closed` of sessions that have ended, and give back what they had."""

    async def open(self, options: SessionOptions, place: str | None = None) -> tuple[Session, bool]:
        """Return the session with this id, or a new one, and whether it is new.

        Args:
            place: the template where it begins, if it is routed.

        If all callers that wait for a new session are cancelled, the session is closed again.

        Raises:
            BadRequest, Conflict, TooManyRequests, Unavailable
            SessionGone: the session of the context has ended.
        """
        self.limits.check_metadata(options.metadata)
        check_secrets(options.secrets)
        options.language = language_of(options.language)
        if options.context_of is not None:
            options = context_options(self.get(options.context_of), options)
        self._factory.pool(options.template, place)  # it is there
        expect_project(options)
        session_id = options.session_id or new_id()
        session = self._sessions.get(session_id)
        if session is not None:
            return same_session(session, options), False
        if self.stopping:
            raise _shutting_down()
        opening = self._opening.get(session_id)
        is_new = opening is None
        if opening is None:
            self._expect_room(options.context_of)
            task = self._own(self._open(session_id, options, place), f"session {session_id} opens")
            of = options.context_of
            workspace = "" if of is not None else options.workspace or session_id
            opening = self._opening[session_id] = Opening(task, workspace, context_of=of)
            task.add_done_callback(lambda _: self._opened(session_id, opening))
        opening.waiting += 1
        try:
            session = await asyncio.shield(opening.task)
            opening.received = True
        except asyncio.CancelledError:
            if opening.task.cancelled():
                raise _shutting_down() from None
            if opening.waiting == 1 and not opening.received:
                self._abandon(session_id, opening)
            raise
        finally:
            opening.waiting -= 1
        return same_session(session, options), is_new

    def limits_of(self, template: str) -> SessionLimits:
        """The limits of sessions of a template. Raises BadRequest if the tenant has no such template."""
        return self.limits.of_template(self._factory.pool(template).spec.limits)

    def get(self, session_id: str) -> Session:
        """Return a session. Raises SessionGone for an hour after its end, NotFound if it is unknown."""
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        self._gone.check(session_id)
        raise NotFound(f"there is no session {session_id}")

    def has(self, session_id: str) -> bool:
        """Whether a session is open, or is being opened."""
        return session_id in self._sessions or session_id in self._opening

    async def openings_ended(self) -> None:
        """Wait until the sessions that are being opened are open, or have failed to."""
        if self._opening:
            await asyncio.wait([opening.task for opening in self._opening.values()])

    async def holder_of(self, workspace: str) -> Session | None:
        """Return the open session that has a workspace, or None. Waits for one that is being opened."""
        for opening in list(self._opening.values()):
            if opening.workspace == workspace:
                await asyncio.wait([opening.task])
        for session in self.list():
            is_context = session.session is not None
            if session.workspace == workspace and not session.is_left and not is_context:
                return session
        return None

    async def resolve(self, session_id: str) -> Session:
        """Return a session. Raises as `get`, and SessionGone as long as its executions are stored."""
        try:
            return self.get(session_id)
        except NotFound:
            reason = await self._store.closed_reason(self.tenant.name, session_id)
            if reason is None:
                raise
            raise gone(session_id, reason) from None

    def list(self) -> Sequence[Session]:
        """Return the open sessions, oldest first."""
        return list(self._sessions.values())

    def close_soon(self, session: Session, reason: str) -> asyncio.Task[None]:
        """Close a session in the background, even if the caller is cancelled."""
        return self._own(session.close(reason), f"session {session.id} closes")

    def close_expired(self) -> None:
        """Close the expired sessions. Called often."""
        now = self._queue.clock()
        for session in self.list():
            at, reason = session.expires_at
            if at <= now and not session.sleeping.instead_of_closing:
                self.close_soon(session, reason)

    async def drain(self, reason: str, *, leave: bool = False) -> None:
        """Refuse new sessions, also unfinished openings. Close each session as soon as it is idle.

        Args:
            leave: leave those that can go on to the next broker instead, with executions that take longer.
        """
        self.stopping = True
        for opening in self._opening.values():
            opening.task.cancel()
        for session in [each for each in self.list() if each.session is None]:
            if session.sleeping.is_asleep and session.outlives_the_broker:
                self._own(session.leave(reason), f"session {session.id} is left asleep")
            elif leave:
                session.leave_when_idle(reason)
            else:
                session.close_when_idle(reason)
        if sessions := self.list():
            await asyncio.wait([session.drained for session in sessions], timeout=_LEAVE_S)
            for session in sessions:
                if session.session is None:
                    session.leave_now()
            await asyncio.wait([session.drained for session in sessions])

    async def stop(self, reason: str, *, leave: bool = False) -> None:
        """Refuse new sessions and close all, with `leave` except those that are left."""
        self.stopping = True
        for opening in self._opening.values():
            opening.task.cancel()
        left = [session for session in self.list() if leave and session.is_left]
        await asyncio.gather(*(each.close(reason) for each in self.list() if each not in left))
        for session in left:
            session.hand_over()
        while self._tasks or self._ending:
            await asyncio.wait([*self._tasks, *self._ending])

    async def _open(self, session_id: str, options: SessionOptions, place: str | None) -> Session:
        limit, tenant = self.tenant.limits.sessions, self.tenant.name
        if limit is None or options.context_of is not None:
            return await self._open_admitted(session_id, options, place)
        if not await self._store.reserve(tenant, session_id, limit):
            raise too_many(limit)
        try:
            return await self._open_admitted(session_id, options, place)
        except BaseException:
            await self._store.unreserve(tenant, session_id)
            raise

    async def _open_admitted(
        self, session_id: str, options: SessionOptions, place: str | None
    ) -> Session:
        source = None
        if options.from_checkpoint is not None:
            checkpoints = self._workspaces.checkpoints
            await checkpoints.get(self.tenant.name, options.from_checkpoint)  # it is there
            source = Source(checkpoints, self.tenant.name, options.from_checkpoint)
        record = SessionRecord(new_id(), self.tenant.name, session_id, options)
        if options.context_of is not None:
            return await self._open_context(record, self.get(options.context_of))
        workspace = await self.claim(record)
        session = self._factory.session(record, workspace, source, place=place)
        await session.open()
        await self._stored(session)
        self._sessions[session_id] = session
        self._gone.forget(session_id)
        return session

    async def _open_context(self, record: SessionRecord, session: Session) -> Session:
        context = self._factory.context(record, session)
        await context.open()
        await self._stored(context)
        try:
            session.add_context(context)
        except RequestError as exc:
            self.close_soon(context, exc.message)
            raise
        self._sessions[context.id] = context
        self._gone.forget(context.id)
        return context

    async def _stored(self, session: Session) -> None:
        """Wait until a session that was just opened is stored, or close it."""
        try:
            await self._store.flushed()
        except BaseException:
            self.close_soon(session, "it could not be stored")
            raise

    async def own_spec(self, record: SessionRecord) -> SandboxSpec | None:
        """The spec of a session whose sandboxes are launched for it; None if they are the pool's."""
        pool = self.pools.get(record.options.template)
        if pool is None or (find := self._factory.project(record)) is None:
            return None
        with contextlib.suppress(RequestError):  # the operator has removed it from the list
            return replace(pool.spec, project=await find())
        return None

    async def claim(self, record: SessionRecord, sandbox: Sandbox | None = None) -> Workspace:
        """Claim the workspace of a session; `sandbox` is its own, if an earlier broker has attached it.

        Raises:
            Conflict, Unavailable
        """
        options = record.options
        return await self._workspaces.claim(
            self.tenant.name,
            record.session_id,
            name=options.workspace,
            retention=options.workspace_retention,
            timeout=self._factory.pool(options.template).acquire_timeout,
            sandbox=sandbox,
        )

    def _opened(self, session_id: str, opening: Opening) -> None:
        if self._opening.get(session_id) is opening:
            del self._opening[session_id]

    def _abandon(self, session_id: str, opening: Opening) -> None:
        """Forget an opening without callers. The next caller with this id opens a new session."""
        self._opened(session_id, opening)
        opening.task.cancel()

        def close(task: asyncio.Task[Session]) -> None:
            if not task.cancelled() and task.exception() is None:
                # Nobody has received it: it was never there, and its id is free.
                session = task.result()
                if self._sessions.get(session_id) is session:
                    del self._sessions[session_id]
                self.close_soon(session, "its client went away while it was opened")

        if opening.task.done():
            close(opening.task)
        else:
            opening.task.add_done_callback(close)

    def _own(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, session: Session, reason: str) -> None:
        for context in (*session.contexts.values(),):
            self.close_soon(context, f"its session was closed: {reason}")
        if session.session is not None:
            session.session.remove_context(session)
        self._ending.add(session.closed)
        session.closed.add_done_callback(self._ending.discard)
        if self._sessions.get(session.id) is not session:
            return  # abandoned: a new session may have its id
        del self._sessions[session.id]
        self._gone.add(session.id, reason)

    def _expect_room(self, context_of: str | None) -> None:
        session = None if context_of is None else self.get(context_of)
        opening = [each.context_of for each in self._opening.values()].count(context_of)
        expect_room(session, opening, self.list(), self.tenant.limits.sessions)


def _shutting_down() -> Unavailable:
    return Unavailable("the broker is shutting down", retry_after=10)
