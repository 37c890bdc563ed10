"""Watches that a client polls: the changes of a directory, kept until they are fetched."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from kernelbroker.protocol.errors import NotFound, RequestError, TooManyRequests

from ...kernels.transfer import TransferFailed
from ...service import filesystem
from ...service.filesystem import Change, Mark
from ...sessions.session import Session
from .connect import ConnectError
from .entries import entry_info
from .places import Place
from .rpc import Fields

MAX_WATCHERS = 32
"""Of one session."""
MAX_EVENTS = 10_000
"""That wait to be fetched, of one watcher."""
_MARK_S = 10.0
"""For the mark behind the changes until now. Sandboxes of an earlier version know none."""
_TYPES = {
    "create": "EVENT_TYPE_CREATE",
    "write": "EVENT_TYPE_WRITE",
    "remove": "EVENT_TYPE_REMOVE",
    "rename": "EVENT_TYPE_RENAME",
    "chmod": "EVENT_TYPE_CHMOD",
}


@dataclass(slots=True)
class _Watcher:
    events: deque[Fields] = field(default_factory=deque)
    lost: bool = False
    failure: RequestError | None = None
    task: asyncio.Task[None] | None = None
    marks: dict[str, asyncio.Event] = field(default_factory=dict)
    """Those that are waited for; set when they have come."""


class Watchers:
    """The watchers of all sessions. They end with their session."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, _Watcher]] = {}
        """By the session's key, then by id."""

    async def create(
        self,
        session: Session,
        place: Place,
        watching: AbstractAsyncContextManager[AsyncGenerator[Change | Mark | None, None]],
        *,
        with_entry: bool,
    ) -> str:
        """Watch a directory until `remove`. Returns the watcher's id.

        Raises:
            TooManyRequests: the session has too many. Others: as `filesystem.watch`.
        """
        if session.key not in self._of:
            self._of[session.key] = {}
            session.closed.add_done_callback(lambda _: self._drop(session.key))
        watchers = self._of[session.key]
        if len(watchers) >= MAX_WATCHERS:
            raise TooManyRequests(
                f"the session has {MAX_WATCHERS} watchers; stop one of them", retry_after=1
            )
        watcher = _Watcher()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                async with watching as changes:
                    if not begun.done():  # its caller was cancelled
                        begun.set_result(None)
                    async for change in changes:
                        if isinstance(change, Change):
                            _keep(watcher, await event_of(session, place, change, with_entry))
                        elif change is not None and (mark := watcher.marks.get(change.mark)):
                            mark.set()
            except (RequestError, TransferFailed) as exc:
                error = (
                    exc if isinstance(exc, RequestError) else NotFound(f"the watcher ended: {exc}")
                )
                watcher.failure = error
                if not begun.done():
                    begun.set_exception(error)

        watcher.task = asyncio.create_task(run(), name=f"watcher of session {session.id}")
        watcher.task.add_done_callback(lambda _: begun.cancel())
        try:
            await begun
        except BaseException:
            watcher.task.cancel()
            raise
        watcher_id = secrets.token_hex(8)
        watchers[watcher_id] = watcher
        return watcher_id

    async def events(self, session: Session, watcher_id: str) -> list[Fields]:
        """Return what has happened since the last call, with all that clients were answered before.

        Raises:
            NotFound, ConnectError
        """
        watcher = self._find(session, watcher_id)
        await _catch_up(session, watcher)
        if watcher.lost:
            watcher.lost = False
            watcher.events.clear()
            raise ConnectError(
                "data_loss",
                f"more than {MAX_EVENTS:,} changes have happened; fetch them more often",
            )
        if not watcher.events and watcher.failure is not None:
            raise watcher.failure
        events = [*watcher.events]
        watcher.events.clear()
        return events

    async def remove(self, session: Session, watcher_id: str) -> None:
        """Stop a watcher. Raises NotFound."""
        watcher = self._find(session, watcher_id)
        del self._of[session.key][watcher_id]
        await _stop(watcher)

    def _find(self, session: Session, watcher_id: str) -> _Watcher:
        watcher = self._of.get(session.key, {}).get(watcher_id)
        if watcher is None:
            raise NotFound(f"there is no watcher {watcher_id[:64]!r}")
        return watcher

    def _drop(self, key: str) -> None:
        for watcher in self._of.pop(key, {}).values():
            assert watcher.task is not None
            watcher.task.cancel()


async def _catch_up(session: Session, watcher: _Watcher) -> None:
    """Wait until all changes until now have come, if the sandbox still tells of any."""
    assert watcher.task is not None
    mark, reached = secrets.token_hex(8), asyncio.Event()
    watcher.marks[mark] = reached
    waiting = asyncio.create_task(reached.wait())
    try:
        with contextlib.suppress(RequestError, TransferFailed):
            await filesystem.mark_watches(session, mark)
            ends = [waiting, watcher.task]
            await asyncio.wait(ends, timeout=_MARK_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        del watcher.marks[mark]


def _keep(watcher: _Watcher, event: Fields) -> None:
    if len(watcher.events) >= MAX_EVENTS:
        watcher.lost = True
    elif not watcher.lost:
        watcher.events.append(event)


async def _stop(watcher: _Watcher) -> None:
    assert watcher.task is not None
    watcher.task.cancel()
    await asyncio.wait([watcher.task])


async def event_of(session: Session, place: Place, change: Change, with_entry: bool) -> Fields:
    """Return a `filesystem.FilesystemEvent`, with the entry if asked and if it is still there."""
    event: Fields = {"name": change.path, "type": _TYPES[change.type]}
    if with_entry and change.type not in ("remove", "rename"):
        path = f"{place.path}/{change.path}".strip("/")
        with contextlib.suppress(RequestError, TransferFailed):
            found = await filesystem.details(session, path, system=place.system)
            event["entry"] = entry_info(found, place)
    return event
