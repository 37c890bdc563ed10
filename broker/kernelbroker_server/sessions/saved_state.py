"""The saved variables of a session that sleeps, and the record by which a later broker finds it."""

from __future__ import annotations

import contextlib
import time

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.errors import NotFound
from kernelbroker.protocol.messages import SessionOptions

from .restoring import Source
from .store import Entry, EventStore

KIND = "asleep"
"""Of the entries in the event store. An entry has the name of the session's id."""


_SLEPT = "slept"
"""Of the entries with the time that a session has slept. An entry has the name of the session's key."""


def note_slept(store: EventStore, tenant: str, key: str, seconds: float, lifetime: float) -> None:
    """Note for how long a session has slept, so that this does not count in a broker that adopts it.

    Args:
        lifetime: how long it may live awake, in seconds.
    """
    until = time.time() + lifetime
    store.put_entry(Entry(_SLEPT, tenant, key, repr(seconds).encode(), until))


def slept_before(store: EventStore, tenant: str, key: str) -> float:
    """Return for how many seconds a session has slept in earlier brokers."""
    entry = store.entry(_SLEPT, tenant, key)
    return 0.0 if entry is None else float(entry.value)


class AsleepSession(msgspec.Struct, kw_only=True):
    """The value of an entry. Times are in seconds since the epoch.

    Attributes:
        checkpoint: the name of the checkpoint with the variables.
        place: the template of its latest sandbox.
        awake: seconds that it was awake, which count for `max_lifetime`.
        key: in the event store; empty if it is not known.
        client, user: its origin.
    """

    session_id: str
    options: SessionOptions
    checkpoint: str
    opened_at: float
    asleep_at: float
    awake: float
    idle_timeout: float
    max_lifetime: float
    place: str | None = None
    key: str = ""
    client: str = ""
    user: str = ""


def change_asleep(store: EventStore, tenant: str, session_id: str, options: SessionOptions) -> None:
    """Let the later broker find the new options of a session, if it sleeps."""
    if (entry := store.entry(KIND, tenant, session_id)) is not None:
        asleep = decode_json(entry.value, AsleepSession)
        asleep.options = options
        asleep.idle_timeout = options.idle_timeout or asleep.idle_timeout
        asleep.max_lifetime = options.max_lifetime or asleep.max_lifetime
        value = msgspec.json.encode(asleep)
        store.put_entry(Entry(KIND, tenant, session_id, value, entry.until))


class SavedState:
    """The saved variables of one session.

    Args:
        source: the checkpoint.
        store: has the entry.
    """

    def __init__(self, source: Source, store: EventStore, session_id: str) -> None:
        self.source = source
        self._store = store
        self._session_id = session_id

    def record(self, session: AsleepSession, retention: float) -> None:
        """Make the sleep outlive the broker. Not for a session whose files or secrets do not."""
        until = time.time() + retention
        value = msgspec.json.encode(session)
        self._store.put_entry(Entry(KIND, self.source.tenant, self._session_id, value, until))

    async def forget(self) -> None:
        """Remove the variables and the entry. A second call does nothing."""
        self._store.drop_entry(KIND, self.source.tenant, self._session_id)
        with contextlib.suppress(NotFound):
            await self.source.store.delete(self.source.tenant, self.source.name)
