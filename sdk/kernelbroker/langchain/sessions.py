"""Which session a call works in, for each way to name it; and coroutines for callers without a loop."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from ..client import Broker
from ..protocol.errors import Conflict, SessionGone
from ..session import Session

T = TypeVar("T")
SessionChoice: TypeAlias = str | Session | Callable[[Mapping[str, Any]], str] | None

MAX_SESSIONS = 200
"""Sessions of one name, one after the other, in the time for which the broker remembers them."""

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


def session_id_of(text: str) -> str:
    """Return a session id for any text; the text itself if it is one."""
    if _ID.fullmatch(text):
        return text
    return "thread-" + hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def chosen_id(choice: SessionChoice, config: Mapping[str, Any]) -> str | None:
    """Return the id of the session of a run; None if nothing names one."""
    match choice:
        case None:
            thread = (config.get("configurable") or {}).get("thread_id")
            return None if thread is None else session_id_of(str(thread))
        case str():
            return session_id_of(choice)
        case Session():
            return choice.session_id
    return session_id_of(choice(config))


@asynccontextmanager
async def opened(
    broker: Broker, session_id: str | None, template: str = "default"
) -> AsyncGenerator[Session, None]:
    """Open or join the session, for one call. It stays open, unless it has no name: then it is closed.

    The connection is the call's own, so that calls may come from several threads and event loops.

    Args:
        template: of a session that is opened.
    """
    if session_id is None:
        found = broker.session(template=template)
    else:
        found = await _named(broker, session_id, template)
    async with found as session:
        yield session


async def _named(broker: Broker, name: str, template: str) -> Session:
    """Connect to the open session of this name; open one if none is.

    The broker remembers the ids of ended sessions for a day, and does not open them again. A successor,
    whose id is made from the name, has their files then.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:40]
    ids = [name, *(f"again-{number}-{digest}" for number in range(2, MAX_SESSIONS + 1))]
    for session_id in ids:
        try:
            asked = broker.session(session_id, template=template, workspace=name, keep=True)
            return await asked.open()
        except SessionGone as exc:
            gone = exc
        except Conflict:  # A successor may have the files, although an earlier id is free again.
            for info in await broker.sessions():
                if info.session_id in ids:
                    return await broker.attach(info.session_id)
            raise
    raise gone


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine, in a thread with a loop of its own: the caller's may have a running one."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()
