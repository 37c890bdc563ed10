"""A tenant's sessions: opened once for each id, closed when their time is over, remembered for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    SessionGone,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.findings import Assessment, Language
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from ..pool.runner import Pool
from ..telemetry.facts import Observer
from ..telemetry.logs import apart
from ..tenants.tenant import Tenant
from .execution import Execution
from .gate import Door
from .limits import SessionLimits
from .policy import Policies
from .repeats import Repeats
from .session import Session
from .workspace import Workspaces

_REMEMBERED_S = 3600.0
"""How long a closed session answers why it is gone."""
_REMEMBERED_MAX = 10_000
_EXECUTION_OVER = "its one execution is over"
_FOR_ONE = ""
"""Where confirmations are good that have no session to come back to: in the next one."""
_SWEEP_S = 0.25
"""How late a session may be closed."""


class Registry:
    """Opens, finds and closes sessions.

    Attributes:
        stopping: no session is opened any more.
        opened, submitted: what was done under an Idempotency-Key; of a session its id.
    """

    def __init__(
        self,
        tenant: Tenant,
        pools: Mapping[str, Pool],
        limits: SessionLimits,
        door: Door,
        observer: Observer,
        policies: Policies,
        workspaces: Workspaces,
    ) -> None:
        self.tenant = tenant
        self.door = door
        self.workspaces = workspaces
        self._policies = policies
        self.limits = limits
        self._observer = observer
        self._pools = pools
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._waiting: dict[str, int] = {}
        self._gone: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._closing: set[asyncio.Task[Any]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self.stopping = False
        self.opened: Repeats[str] = Repeats(lambda _: 0)
        self.submitted: Repeats[tuple[Session, Execution]] = Repeats(
            lambda outcome: outcome[0].weight + outcome[1].weight
        )

    def start(self) -> None:
        self._sweeper = asyncio.create_task(
            self._sweep(), name="session sweeper", context=apart("tenant")
        )

    async def drain(self, reason: str) -> None:
        """Refuse new sessions, also those being opened; wait until each was idle, and is closed."""
        self.stopping = True
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*(session.retire(reason) for session in self._sessions.values()))

    async def stop(self, reason: str) -> None:
        """Refuse new sessions and close all."""
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.opened.cancel()
        self.submitted.cancel()
        for opening in self._opening.values():
            opening.cancel()
        sessions = list(self._sessions.values())
        await asyncio.gather(*(session.close(reason) for session in sessions))
        while left := {*self._closing, *self._opening.values()}:
            await asyncio.wait(left)

    async def open(self, options: SessionOptions) -> tuple[Session, bool]:
        """The session of that id, or a new one; and whether it is new.

        If the caller is cancelled, a session that nobody else waits for is closed again.

        Raises:
            BadRequest, Conflict, SessionGone, TooManyRequests, Unavailable.
        """
        self.limits.check_metadata(options.metadata)
        if options.template not in self._pools:
            known = ", ".join(sorted(self._pools))
            raise BadRequest(f"no template {options.template!r}; there are: {known}")
        session_id = options.session_id or self.door.new_id()
        session = self._sessions.get(session_id)
        if session is not None:
            return self._same(session, options), False
        if self.stopping:
            raise Unavailable("the broker is shutting down", retry_after=10)
        self._forget()
        if session_id in self._gone:
            self.get(session_id)
        opening = self._opening.get(session_id)
        is_new = opening is None
        if opening is None:
            self._expect_room()
            opening = asyncio.create_task(
                self._open(session_id, options), name=f"session {session_id} opens"
            )
            self._opening[session_id] = opening
            opening.add_done_callback(lambda done: self._opened(session_id, done))
        self._waiting[session_id] = self._waiting.get(session_id, 0) + 1
        try:
            session = await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise Unavailable("the broker is shutting down", retry_after=10) from None
            if self._waiting[session_id] == 1:
                self._abandon(session_id, opening)
            raise
        finally:
            self._waiting[session_id] -= 1
            if not self._waiting[session_id]:
                del self._waiting[session_id]
        return self._same(session, options), is_new

    def get(self, session_id: str) -> Session:
        """Raises SessionGone where it was closed within the last hour, NotFound where it is unknown."""
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        self._forget()
        if session_id in self._gone:
            raise SessionGone(
                f"session {session_id} is closed: {self._gone[session_id][1]}; open a new one"
            )
        raise NotFound(f"there is no session {session_id}")

    @property
    def pools(self) -> Mapping[str, Pool]:
        """Those of the templates that the tenant may use, by name."""
        return self._pools

    def list(self) -> list[Session]:
        return list(self._sessions.values())

    async def assess(self, code: str, language: Language) -> Assessment:
        """As `Policies.assess`."""
        return await self._policies.assess(code, language)

    async def judge_for_one(self, request: ExecutionRequest, template: str) -> Assessment | None:
        """What `Session.judge` finds, before there is a session for one execution: what is refused
        here has cost no sandbox.

        Raises: as `Session.submit`.
        """
        self.limits.timeout_of(request)
        self.door.expect_room()
        assessment = await self._policies.judge(request, template)
        if request.confirm is None:  # one that is given is used up by the execution itself
            self._policies.admit(request, template, _FOR_ONE, assessment)
        return assessment

    async def open_for_one(self, options: SessionOptions) -> Session:
        """A session for one execution; `close_after` sees to its end. Raises as `open` does."""
        session, _ = await self.open(options)
        session.scope = _FOR_ONE
        return session

    @contextlib.asynccontextmanager
    async def ephemeral(self, options: SessionOptions) -> AsyncIterator[Session]:
        """A session that lives as long as the block."""
        session = await self.open_for_one(options)
        try:
            yield session
        finally:
            self.close_soon(session, _EXECUTION_OVER)

    def close_after(self, session: Session, execution: Execution) -> None:
        """Close the session, in the background, as soon as its execution has ended."""

        async def close() -> None:
            async for _ in execution.journal.follow():
                pass
            await session.close(_EXECUTION_OVER)

        self._close(close())

    def close_soon(self, session: Session, reason: str) -> asyncio.Task[None]:
        """Close it in the background; whoever asks may go."""
        return self._close(session.close(reason))

    def _close(self, closing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _expect_room(self) -> None:
        limit = self.tenant.limits.sessions
        if limit is not None and len(self._sessions) + len(self._opening) >= limit:
            raise TooManyRequests(
                f"{limit} sessions are open, the most that you may have; close one", retry_after=5
            )

    async def _open(self, session_id: str, options: SessionOptions) -> Session:
        pool = self._pools[options.template]
        workspace = await self.workspaces.claim(
            self.tenant.name,
            session_id,
            name=options.workspace,
            retention=options.workspace_retention,
            timeout=pool.acquire_timeout,
        )
        session = Session(
            session_id,
            options,
            self.limits,
            pool,
            self.door,
            self._policies,
            workspace,
            self.workspaces.measure,
            self._observer,
            self._closed,
        )
        await session.open()
        self._sessions[session_id] = session
        return session

    def _opened(self, session_id: str, opening: asyncio.Task[Session]) -> None:
        if self._opening.get(session_id) is opening:
            del self._opening[session_id]

    def _abandon(self, session_id: str, opening: asyncio.Task[Session]) -> None:
        """Nobody waits for it any more; who asks for this id from now on opens it anew."""
        self._opened(session_id, opening)
        opening.cancel()

        def close(task: asyncio.Task[Session]) -> None:
            if not task.cancelled() and task.exception() is None:
                self.close_soon(task.result(), "its client went away while it was opened")

        opening.add_done_callback(close)
        self._closing.add(opening)
        opening.add_done_callback(self._closing.discard)

    @staticmethod
    def _same(session: Session, options: SessionOptions) -> Session:
        if session.options.template != options.template:
            raise Conflict(
                f"session {session.id} has the template {session.options.template!r}; "
                "choose another session_id"
            )
        if options.workspace not in (None, session.workspace):
            raise Conflict(
                f"session {session.id} has the workspace {session.workspace!r}; "
                "choose another session_id"
            )
        for name in ("cwd", "env", "secrets"):
            asked = getattr(options, name)
            if asked and asked != getattr(session.options, name):
                raise Conflict(
                    f"session {session.id} was opened with another {name}, which stays; leave it out, "
                    "give it to each cell, or choose another session_id"
                )
        return session

    def _closed(self, session: Session, reason: str) -> None:
        del self._sessions[session.id]
        self._gone[session.id] = (self.door.clock(), reason)
        self._forget()

    def _forget(self) -> None:
        horizon = self.door.clock() - _REMEMBERED_S
        while self._gone:
            oldest = next(iter(self._gone))
            if self._gone[oldest][0] > horizon and len(self._gone) <= _REMEMBERED_MAX:
                break
            del self._gone[oldest]

    async def _sweep(self) -> None:
        while True:
            now = self.door.clock()
            for session in list(self._sessions.values()):
                at, reason = session.expires_at
                if at <= now:
                    self.close_soon(session, reason)
            await asyncio.sleep(_SWEEP_S)
