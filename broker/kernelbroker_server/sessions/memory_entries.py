"""The entries of an event store, in memory."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

from .store import Entry, EventStore

_MOST = 10_000
"""Entries of one kind and tenant that are kept; the oldest is forgotten first."""


class MemoryEntries(EventStore):
    """The part of a store that keeps entries. `clock` returns the time in seconds since 1970."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str], OrderedDict[str, Entry]] = {}

    def put_entry(self, entry: Entry) -> None:
        entries = self._entries.setdefault((entry.kind, entry.tenant), OrderedDict())
        entries[entry.name] = entry
        entries.move_to_end(entry.name)
        now = self._clock()
        for name, oldest in list(itertools.islice(entries.items(), 2)):
            if len(entries) > _MOST or oldest.until <= now:
                del entries[name]

    def entry(self, kind: str, tenant: str, name: str) -> Entry | None:
        entries = self._entries.get((kind, tenant))
        entry = None if entries is None else entries.get(name)
        return None if entry is None or entry.until <= self._clock() else entry

    def entries(self, kind: str) -> Sequence[Entry]:
        now = self._clock()
        of_kind = (entries for (each, _), entries in self._entries.items() if each == kind)
        return [entry for entries in of_kind for entry in entries.values() if entry.until > now]

    def drop_entry(self, kind: str, tenant: str, name: str) -> None:
        if (entries := self._entries.get((kind, tenant))) is not None:
            entries.pop(name, None)
