"""Puts idle sessions to sleep, and finds those that an earlier broker left asleep.

The variables are saved in the store of checkpoints; the files stay in the workspace. A session of which
something cannot be saved stays awake: nothing is lost without a message.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from kernelbroker.protocol.errors import RequestError, Unavailable
from kernelbroker.protocol.messages import MissingVariable

from ..kernels.transfer import TransferFailed
from ..sessions.registry import Registry
from ..sessions.restoring import Source
from ..sessions.saved_state import AsleepSession, SavedState
from ..sessions.session import Session
from ..sessions.store import EventStore
from ..workspaces.checkpoint_store import CheckpointStore
from .checkpoints import Checkpoints

logger = logging.getLogger(__name__)

_AT_ONCE = 4
"""Sessions of a tenant that are saved at the same time."""

_CONTEXTS = MissingVariable(
    name="<contexts>", reason="its contexts are open, and cannot be saved: close them"
)


class Sleeper:
    """Puts the sessions of one tenant to sleep."""

    def __init__(
        self,
        registry: Registry,
        checkpoints: Checkpoints,
        checkpoint_store: CheckpointStore,
        store: EventStore,
    ) -> None:
        self._registry = registry
        self._checkpoints = checkpoints
        self._checkpoint_store = checkpoint_store
        self._store = store
        self._saving: dict[str, asyncio.Task[None]] = {}

    def put_to_sleep(self, now: float) -> None:
        """Begin to save the sessions that are due. Called often.

        Args:
            now: by the admission's clock.
        """
        for session in self._registry.list():
            due = session.sleeping.due_at
            if due is None or due > now or session.key in self._saving:
                continue
            if session.contexts:
                session.sleeping.refuse([_CONTEXTS])
                continue
            if len(self._saving) >= _AT_ONCE or self._registry.stopping:
                return
            name = f"session {session.id} falls asleep"
            task = asyncio.create_task(self._put(session), name=name)
            self._saving[session.key] = task
            task.add_done_callback(lambda _, key=session.key: self._saving.pop(key))  # type: ignore[misc]

    async def stop(self) -> None:
        """Give up what is being saved."""
        for task in self._saving.values():
            task.cancel()
        if self._saving:
            await asyncio.wait(list(self._saving.values()))

    async def _put(self, session: Session) -> None:
        name = f".asleep-{session.key}"
        source = Source(self._checkpoint_store, self._registry.tenant.name, name)
        saved = SavedState(source, self._store, session.id)
        is_asleep = False
        try:
            is_asleep = await self._save(session, saved)
        except (RequestError, TransferFailed) as exc:
            if session.closed_reason is None:
                session.sleeping.refuse([MissingVariable(name="<all>", reason=str(exc)[:500])])
        except Exception:
            logger.exception("session %s cannot fall asleep", session.id)
            session.sleeping.refuse([MissingVariable(name="<all>", reason="a fault of the broker")])
        finally:
            if not is_asleep:
                await saved.forget()

    async def _save(self, session: Session, saved: SavedState) -> bool:
        """Returns whether the session falls asleep."""
        retention = session.limits.asleep_retention
        with session.sleeping.saving() as is_undisturbed:
            info = await self._checkpoints.save_for_sleep(session, saved.source.name, retention)
            await session.settled()
        if info.missing:
            session.sleeping.refuse(info.missing)
            return False
        if not is_undisturbed() or not session.sleeping.begin(saved):
            return False
        if session.outlives_the_broker:
            saved.record(_record(session, saved), retention)
        return True

    async def resume(self, value: bytes) -> None:
        """Take over a session that an earlier broker left asleep, or forget it if that cannot be.

        What fails for the moment is left to the next broker.
        """
        try:
            asleep = msgspec.json.decode(value, type=AsleepSession)
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
    )
