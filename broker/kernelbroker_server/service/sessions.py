"""Use cases of sessions: open, find, list, change, interrupt, restart, close."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, SessionGone
from kernelbroker.protocol.messages import ContextOptions, SandboxLimits, SessionOptions

from ..sessions.past_sessions import PastPage, Place
from ..sessions.projects import project_of
from ..sessions.registry import Registry
from ..sessions.routes import has_browser
from ..sessions.saved_state import change_asleep
from ..sessions.session import Session
from ..sessions.store import EventStore
from ..telemetry.origin import current_origin
from .code_operations import clone
from .forges import check_clone
from .idempotency import IdempotencyCache, IdempotencyKey, StoredKeys

_BY_CLIENT = "its client closed it"


class SessionChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The changes to an open session. Durations are in seconds; null leaves one as it is."""

    idle_timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_lifetime: Annotated[float, msgspec.Meta(gt=0)] | None = None
    metadata: dict[str, Any] | None = None
    limits: SandboxLimits | None = None


class Sessions:
    """The sessions of one tenant."""

    def __init__(self, registry: Registry, store: EventStore) -> None:
        self._registry = registry
        self._store = store
        tenant = registry.tenant.name
        stored = StoredKeys[str](store, "open", tenant, lambda opened: [opened], _opened_before)
        self._opened: IdempotencyCache[str] = IdempotencyCache(lambda _: 0, stored=stored)
        """Ids of sessions that were opened under an idempotency key."""

    async def open(
        self, options: SessionOptions, key: IdempotencyKey | None = None
    ) -> tuple[Session, bool]:
        """Return the session with this id, or a new one, and whether it is new.

        A request with the key of an earlier one gets the same session. If all callers that wait for
        a new session without a key are cancelled, it is closed again.

        Raises:
            BadRequest, Conflict, SessionGone, TooManyRequests, Unavailable
        """
        if key is None:
            return await self._opened_with_project(options)

        async def open_session() -> str:
            return (await self._opened_with_project(options))[0].id

        session_id, repeated = await self._opened.once(key, open_session)
        return await self.resolve(session_id), not repeated

    async def _opened_with_project(self, options: SessionOptions) -> tuple[Session, bool]:
        """Open a session, and clone its project. If that fails or is cancelled, it is closed again."""
        project = project_of(options)
        if project is not None and project.git is not None:
            check_clone(project.git, project.ref)
        session, is_new = await self._registry.open(options)
        if is_new and project is not None and project.git is not None:
            try:
                await clone(session, project)
            except BaseException:
                self.close_soon(session, "its project could not be cloned")
                raise
        return session, is_new

    async def resolve(self, session_id: str) -> Session:
        """Return the handle of an open session.

        Raises:
            NotFound: no session with this id is known.
            SessionGone: the session is closed; the message has the reason.
        """
        return await self._registry.resolve(session_id)

    def browser_template(self) -> str:
        """Return the template of sessions that browse. Raises Conflict if none has a browser."""
        pool = self._registry.routes.find("aio_sandbox")
        if pool is None or not has_browser(pool):
            raise Conflict("this broker has no template with a browser: see docs/browser.md")
        return pool.spec.template

    def list(self) -> Sequence[Session]:
        """Return the open sessions, oldest first, without their contexts."""
        return [session for session in self._registry.list() if session.session is None]

    def list_with_contexts(self) -> Sequence[Session]:
        """Return the open sessions, oldest first, and their contexts, each after its session."""
        return self._registry.list()

    async def past(self, text: str, limit: int, before: Place | None) -> PastPage:
        """Return sessions that have ended, the latest first. Raises Unavailable.

        Args:
            text: what their names, metadata or last code contain.
            before: where an earlier page ended.
        """
        return await self._store.past_sessions(self._registry.tenant.name, text, limit, before)

    async def open_context(
        self, session_id: str, asked: ContextOptions, key: IdempotencyKey | None = None
    ) -> tuple[Session, bool]:
        """Return the context with this id, or a new one, and whether it is new. Raises as `open`."""
        session = await self.resolve(session_id)
        options = SessionOptions(
            context_of=session.id,
            session_id=asked.context_id,
            language=asked.language,
            cwd=asked.cwd,
            on_error=asked.on_error,
            metadata=asked.metadata,
        )
        return await self.open(options, key)

    async def contexts(self, session_id: str) -> Sequence[Session]:
        """Return the contexts of a session, oldest first. Raises as `resolve`."""
        return list((await self.resolve(session_id)).contexts.values())

    async def context(self, session_id: str, context_id: str) -> Session:
        """Return a context of a session.

        Raises:
            NotFound: the session has no such context.
            SessionGone: the session, or the context, is closed.
        """
        session = await self.resolve(session_id)
        context = await self.resolve(context_id)
        if context.session is not session:
            raise NotFound(f"session {session_id} has no context {context_id}")
        return context

    async def change(self, session_id: str, change: SessionChange) -> Session:
        """Change durations, metadata or limits. The starting points of both durations stay the same.

        Raises:
            BadRequest: a duration or the metadata is beyond the limits, or the limits cannot be applied.
            as `resolve`.
        """
        session = await self.resolve(session_id)
        if session.session is not None and (change.max_lifetime or change.idle_timeout):
            raise BadRequest(
                f"a context lives as long as its session: change those of {session.session.id}"
            )
        limit = session.limits.max_lifetime
        if (change.max_lifetime or 0) > limit or (change.idle_timeout or 0) > limit:
            raise BadRequest(f"a session lives at most {limit:g} s")
        session.limits.check_metadata(change.metadata or {})
        if change.limits is not None:
            await session.change_limits(change.limits)
        options = session.options
        if change.idle_timeout is not None:
            session.idle_timeout = options.idle_timeout = change.idle_timeout
        if change.max_lifetime is not None:
            session.max_lifetime = options.max_lifetime = change.max_lifetime
        if change.metadata is not None:
            options.metadata = change.metadata
        self._record(session)
        return session

    def set_lifetime(self, session: Session, seconds: float, *, only_longer: bool = False) -> None:
        """Let a session live for so long from now on, as far as its lifetime may be.

        Args:
            only_longer: do nothing if it lives longer already.

        Raises:
            BadRequest: no session may live for so long.
        """
        limit = session.limits.max_lifetime
        if seconds > limit:
            raise BadRequest(
                f"a session lives at most {limit:g} s (the setting sessions.max_lifetime)"
            )
        lifetime = min(limit, session.age + seconds)
        if not (only_longer and lifetime < session.max_lifetime):
            session.max_lifetime = session.options.max_lifetime = lifetime
            self._record(session)

    def _record(self, session: Session) -> None:
        """Record its options for the next broker."""
        self._store.change_session(session.key, session.options)
        change_asleep(self._store, self._registry.tenant.name, session.id, session.options)

    async def wake(self, session: Session) -> None:
        """Wake a session that sleeps. Raises as `Session.borrow`."""
        async with session.borrow():
            pass

    async def interrupt(self, session_id: str, execution_id: str | None = None) -> None:
        """Raise KeyboardInterrupt in the running cell; waiting ones stay queued. Raises as `resolve`."""
        (await self.resolve(session_id)).interrupt(execution_id)

    async def restart(self, session_id: str) -> Session:
        """Give the session a fresh kernel and keep its files. Raises as `resolve`, and Unavailable."""
        session = await self.resolve(session_id)
        await session.restart()
        return session

    async def close(self, session_id: str) -> None:
        """End a session. Raises as `resolve`."""
        session = await self.resolve(session_id)
        await session.close(_closed_by(session))

    def close_soon(self, session: Session, reason: str = _BY_CLIENT) -> asyncio.Task[None]:
        """End a session in the background, even if the caller is cancelled."""
        return self._registry.close_soon(session, reason)

    def close_when_idle(self, session: Session) -> None:
        """End a session as soon as nothing runs or waits in it."""
        session.close_when_idle(_BY_CLIENT)

    def stop(self) -> None:
        """Cancel openings under idempotency keys."""
        self._opened.cancel()


async def _opened_before(outcome: Sequence[str] | None) -> str:
    """Return the id of a session that was opened before a restart."""
    if outcome is None:
        raise SessionGone("the broker ended while it opened this session; choose a new key")
    return outcome[0]


def _closed_by(session: Session) -> str:
    """Return the reason of an end that somebody asks for now."""
    asked = current_origin()
    if asked.client != "console" or asked == session.origin:
        return _BY_CLIENT
    now = datetime.now(UTC)
    return f"{asked.user or 'somebody'} closed it in the console on {now:%Y-%m-%d at %H:%M:%S} UTC"
