"""Puts idle sessions to sleep, and finds those that an earlier broker left asleep.

The variables are saved in the store of checkpoints; the files stay in the workspace. A session of which
something cannot be saved stays awake: nothing is lost without a message.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Sequence

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.errors import Conflict, RequestError, Unavailable
from kernelbroker.protocol.messages import MissingVariable

from ..kernels.transfer import TransferFailed
from ..sessions.registry import Registry
from ..sessions.restoring import Source
from ..sessions.saved_state import AsleepSession, SavedState
from ..sessions.session import Session
from ..sessions.store import EventStore
from ..workspaces.checkpoint_store import CheckpointStore
from .checkpoints import Checkpoints
from .processes import Processes, ProcessInfo

logger = logging.getLogger(__name__)

_AT_ONCE = 4
"""Sessions of a tenant that are saved at the same time."""
_NAMED = 5
"""Of what cannot be saved, in one message."""

_CONTEXTS = MissingVariable(
    name="<contexts>", reason="its contexts are open, and cannot be saved: close them"
)


class Sleeper:
    """Puts the sessions of one tenant to sleep."""

    def __init__(
        self,
        registry: Registry,
        checkpoints: Checkpoints,
        processes: Processes,
        checkpoint_store: CheckpointStore,
        store: EventStore,
    ) -> None:
        self._registry = registry
        self._checkpoints = checkpoints
        self._processes = processes
        self._checkpoint_store = checkpoint_store
        self._store = store
        self._saving: dict[str, asyncio.Task[None]] = {}

    def put_to_sleep(self, now: float) -> None:
        """Begin to save the sessions that are due. Called often.

        Args:
            now: by the admission's clock.
        """
        for session in self._registry.list():
            due, sleeping = session.sleeping.due_at, session.sleeping
            at_end = sleeping.instead_of_closing and session.expires_at[0] <= now
            if (not at_end and (due is None or due > now)) or session.key in self._saving:
                continue
            if session.contexts:
                sleeping.refuse([_CONTEXTS])
                for context in session.contexts.values() if at_end else ():
                    self._registry.close_soon(context, "its session falls asleep")
                continue
            if len(self._saving) >= _AT_ONCE or self._registry.stopping:
                return
            self._begin(session, at_end=at_end)

    async def sleep(self, session: Session) -> None:
        """Put a session to sleep now, after the cells that were queued before.

        Raises:
            Conflict: it sleeps already, or something of it cannot be saved; the message names it.
            SessionGone
            Unavailable: it was used meanwhile.
        """
        session.expect_open()
        if session.sleeping.is_asleep:
            raise Conflict(f"session {session.id} is asleep already")
        if session.contexts:
            raise Conflict(f"session {session.id} cannot be put to sleep: {_CONTEXTS.reason}")
        if session.key not in self._saving:
            self._begin(session)
        await asyncio.wait([self._saving[session.key]])
        if session.sleeping.is_asleep:
            return
        session.expect_open()
        if missing := session.sleeping.kept_awake_by:
            what = "; ".join(f"{each.name}: {each.reason}" for each in missing[:_NAMED])
            raise Conflict(f"session {session.id} cannot be put to sleep, since it has {what}")
        raise Unavailable(f"session {session.id} was used meanwhile; try again", retry_after=1)

    async def sleep_all(self) -> None:
        """Put all sessions to sleep that outlive the broker, even if something of one cannot be saved."""
        for session in self._registry.list():
            is_due = session.outlives_the_broker and not session.sleeping.is_asleep
            if is_due and session.session is None and session.key not in self._saving:
                self._begin(session, at_end=True)
        if self._saving:
            await asyncio.wait(list(self._saving.values()))

    def _begin(self, session: Session, *, at_end: bool = False) -> None:
        session.sleeping.kept_awake_by = ()
        name = f"session {session.id} falls asleep"
        task = asyncio.create_task(self._put(session, at_end=at_end), name=name)
        self._saving[session.key] = task
        task.add_done_callback(lambda _: self._saving.pop(session.key))

    async def stop(self) -> None:
        """Give up what is being saved."""
        for task in self._saving.values():
            task.cancel()
        if self._saving:
            await asyncio.wait(list(self._saving.values()))

    async def _put(self, session: Session, *, at_end: bool) -> None:
        """Save a session, and put it to sleep.

        Args:
            at_end: it would be closed otherwise, so that it sleeps even if something cannot be saved.
        """
        name = f".asleep-{session.key}"
        source = Source(self._checkpoint_store, self._registry.tenant.name, name)
        saved = SavedState(source, self._store, session.id)
        is_asleep = False
        try:
            is_asleep = await self._save(session, saved, at_end=at_end)
        except (RequestError, TransferFailed) as exc:
            if session.closed_reason is None:
                session.sleeping.refuse([MissingVariable(name="<all>", reason=str(exc)[:500])])
        except Exception:
            logger.exception("session %s cannot fall asleep", session.id)
            session.sleeping.refuse([MissingVariable(name="<all>", reason="a fault of the broker")])
        finally:
            if not is_asleep:
                await saved.forget()
                if at_end and session.sleeping.kept_awake_by and session.closed_reason is None:
                    self._registry.close_soon(session, session.expires_at[1])

    async def _save(self, session: Session, saved: SavedState, *, at_end: bool) -> bool:
        """Returns whether the session falls asleep."""
        retention = session.limits.asleep_retention
        if not session.why_no_process_checkpoints and not session.streams:
            try:
                return await self._save_processes(session, saved, retention)
            except RequestError as exc:
                session.expect_open()
                logger.info("session %s sleeps without its processes: %s", session.id, exc.message)
        if not at_end and (running := await self._running(session)):
            session.sleeping.refuse(running, retry=True)
            return False
        for context in list(session.contexts.values()):
            await context.close("its session falls asleep")
        with session.sleeping.saving() as is_undisturbed:
            info = await self._checkpoints.save_for_sleep(session, saved.source.name, retention)
            await session.settled()
        if info.missing and not at_end:
            session.sleeping.refuse(info.missing)
            return False
        if not is_undisturbed() or not session.sleeping.begin(saved):
            return False
        self._record(session, saved, retention)
        return True

    async def _save_processes(self, session: Session, saved: SavedState, retention: float) -> bool:
        """Save the processes whole. Returns whether the session falls asleep."""

        is_asleep = False

        def fall_asleep() -> bool:
            nonlocal is_asleep
            if is_asleep := session.sleeping.begin(saved):
                self._record(session, saved, retention)
            return is_asleep

        with session.sleeping.saving():
            await self._checkpoints.sleep_as_it_is(
                session, saved.source.name, retention, fall_asleep
            )
        return is_asleep

    def _record(self, session: Session, saved: SavedState, retention: float) -> None:
        if session.outlives_the_broker:
            saved.record(_record(session, saved), retention)

    async def _running(self, session: Session) -> Sequence[MissingVariable]:
        """The session's processes, which cannot be saved."""
        with session.sleeping.saving():
            listed = await self._processes.list(session)
        return [
            MissingVariable(
                name="<process>", reason=f"process {each.pid} still runs: {_shown(each)}"
            )
            for each in listed
        ]

    async def resume(self, value: bytes) -> None:
        """Take over a session that an earlier broker left asleep, or forget it if that cannot be.

        What fails for the moment is left to the next broker.
        """
        try:
            asleep = decode_json(value, AsleepSession)
        except msgspec.MsgspecError:
            logger.exception("a session that slept is of another version, and is left as it is")
            return
        source = Source(self._checkpoint_store, self._registry.tenant.name, asleep.checkpoint)
        saved = SavedState(source, self._store, asleep.session_id)
        try:
            await self._checkpoint_store.get(source.tenant, source.name)
            await self._registry.resume(asleep, saved)
        except Unavailable as exc:
            logger.warning("session %s cannot be resumed now: %s", asleep.session_id, exc)
        except RequestError as exc:
            logger.warning("session %s, which slept, is lost: %s", asleep.session_id, exc)
            await saved.forget()


def _shown(process: ProcessInfo) -> str:
    return shlex.join([process.cmd, *process.args])[:200]


def _record(session: Session, saved: SavedState) -> AsleepSession:
    now = time.time()
    return AsleepSession(
        session_id=session.id,
        options=session.options,
        checkpoint=saved.source.name,
        opened_at=session.created_at,
        asleep_at=now,
        awake=now - session.created_at - session.sleeping.slept,
        idle_timeout=session.idle_timeout,
        max_lifetime=session.max_lifetime,
        place=session.spec.template,
        key=session.key,
        client=session.origin.client,
        user=session.origin.user,
    )
