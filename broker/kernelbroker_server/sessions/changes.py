"""The statements that bring records into a database. SQLite and PostgreSQL understand them.

Parameters are `?`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .queries import Row
from .records import (
    EntryDropped,
    EntryPut,
    EventAppended,
    ExecutionBegun,
    ExecutionCreated,
    Record,
    SessionChanged,
    SessionClosing,
    SessionEnded,
    SessionEventAppended,
    SessionOpened,
)

_EXECUTION_BYTES = 500
"""What an execution takes besides its request and its events, about."""


def changes(records: Sequence[Record]) -> Iterator[tuple[str, list[Row]]]:
    """Yield statements, each with its rows of parameters. Some have no rows."""
    of: dict[type[Record], list[Any]] = {kind: [] for kind in _KINDS}
    for record in records:
        of[type(record)].append(record)
    events: list[EventAppended] = of[EventAppended]
    sizes: Counter[int] = Counter()
    for event in events:
        sizes[event.number] += len(event.json)
    # By kind, which is faster. In this order the outcome is the same.
    yield (
        """INSERT INTO sessions VALUES (?, ?, ?, ?, ?, NULL, NULL, NULL, ?, ?)
        ON CONFLICT DO NOTHING""",
        [
            (s.key, s.tenant, s.session_id, s.options, s.opened_at, s.client, s.user)
            for s in of[SessionOpened]
        ],
    )
    yield (
        """INSERT INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, ?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING""",
        [_execution(each) for each in of[ExecutionCreated]],
    )
    yield (
        "UPDATE executions SET begun = 1, progress = ? WHERE number = ?",
        [*{each.number: (each.progress, each.number) for each in of[ExecutionBegun]}.values()],
    )
    yield (
        "INSERT INTO events VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        [(e.number, e.seq, e.json) for e in events],
    )
    yield (
        "UPDATE executions SET size = size + ? WHERE number = ?",
        [(size, number) for number, size in sizes.items()],
    )
    yield (
        "UPDATE executions SET ended_at = ?, progress = ? WHERE number = ?",
        [(e.ended_at, b"", e.number) for e in events if e.ended_at is not None],
    )
    yield (
        "UPDATE sessions SET options = ? WHERE key = ?",
        [(each.options, each.key) for each in of[SessionChanged]],
    )
    yield (
        "UPDATE sessions SET closing = ? WHERE key = ?",
        [(each.reason, each.key) for each in of[SessionClosing]],
    )
    yield (
        "UPDATE sessions SET ended_at = ?, reason = ? WHERE key = ?",
        [(each.at, each.reason, each.key) for each in of[SessionEnded]],
    )
    yield (
        "INSERT INTO session_events VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        [(each.key, each.seq, each.json) for each in of[SessionEventAppended]],
    )
    yield (
        "DELETE FROM session_events WHERE session_key = ? AND seq < ?",
        [*{e.key: (e.key, e.first) for e in of[SessionEventAppended]}.values()],
    )
    # The latest change of each entry decides.
    entries: dict[Row, EntryPut | EntryDropped] = {}
    for record in records:
        if isinstance(record, EntryPut | EntryDropped):
            entries[record.kind, record.tenant, record.name] = record
    yield (
        """INSERT INTO entries VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (kind, tenant, name) DO UPDATE SET value = excluded.value, until = excluded.until""",
        [(*n, e.value, e.until) for n, e in entries.items() if isinstance(e, EntryPut)],
    )
    yield (
        "DELETE FROM entries WHERE kind = ? AND tenant = ? AND name = ?",
        [name for name, each in entries.items() if isinstance(each, EntryDropped)],
    )


_KINDS: tuple[type[Record], ...] = (
    SessionOpened,
    ExecutionCreated,
    ExecutionBegun,
    EventAppended,
    SessionChanged,
    SessionClosing,
    SessionEnded,
    SessionEventAppended,
    EntryPut,
    EntryDropped,
)


def _execution(each: ExecutionCreated) -> Row:
    size = len(each.request) + _EXECUTION_BYTES
    return (
        each.number,
        each.key,
        each.id,
        each.request,
        each.packages,
        each.findings,
        each.accepted_at,
        size,
        int(each.allow_stdin),
        b"",
        each.client,
        each.user,
    )
