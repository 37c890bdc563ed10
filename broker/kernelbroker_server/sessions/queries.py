"""What is asked of the database of a store. Everything here blocks, and raises the database's errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.messages import ExecutionRequest

from .past_sessions import Place

Row = tuple[Any, ...]

_PAGE = 200
"""Sessions that are read at once."""


class Unended(NamedTuple):
    """An execution without a result.

    Attributes:
        key: of its session.
        last: the `seq` of its last event.
        passed: a later execution of its session has begun, so this one has ended.
    """

    number: int
    id: str
    key: str
    begun: bool
    last: int
    request: bytes
    packages: bytes
    progress: bytes
    passed: bool

    @property
    def can_go_on(self) -> bool:
        """Whether another broker can go on with it, or run it.

        The values of secrets are not stored, nor is what installs packages, except its progress.
        """
        if decode_as(self.request, ExecutionRequest).secrets:
            return False
        if self.begun:
            return bool(self.progress)
        return not decode_as(self.packages, list[str])


class Queries:
    """The queries. A horizon is a time: sessions that ended before it count as unknown."""

    def __init__(self, connection: Any) -> None:
        """Args:
        connection: to SQLite; a subclass for another database has its own `_query`.
        """
        self._connection = connection

    def unended(self) -> list[Unended]:
        """Executions without a result, oldest first."""
        rows = self._query(
            """SELECT number, id, session_key, begun, (
                SELECT coalesce(max(seq), 0) FROM events WHERE events.number = executions.number
            ), request, packages, progress, EXISTS (
                SELECT 1 FROM executions AS later WHERE later.session_key = executions.session_key
                AND later.number > executions.number AND later.begun = 1
            ) FROM executions WHERE ended_at IS NULL ORDER BY number"""
        )
        return [Unended(*row) for row in rows]

    def open_sessions(self) -> list[Row]:
        """Sessions that have not ended, oldest first.

        Returns:
            key, tenant, session_id, options, opened_at, client, user, why it ends when nothing is left to
            do or None
        """
        return self._query(
            """SELECT key, tenant, session_id, options, opened_at, client, "user", closing
            FROM sessions WHERE ended_at IS NULL ORDER BY opened_at"""
        )

    def latest_executions(self, key: str, count: int) -> list[Row]:
        """The executions of a session that have not ended, and the latest that have, oldest first.

        Args:
            count: of both together, unless more have not ended.

        Returns:
            number, id, request, packages, findings, accepted_at, client, user, ended_at, allow_stdin, begun
        """
        return self._query(
            """SELECT number, id, request, packages, findings, accepted_at, client, "user",
                ended_at, allow_stdin, begun
            FROM executions WHERE session_key = ? AND (ended_at IS NULL OR number IN (
                SELECT number FROM executions WHERE session_key = ? ORDER BY number DESC LIMIT ?
            )) ORDER BY number""",
            key,
            key,
            count,
        )

    def closed_reason(self, tenant: str, session_id: str, horizon: float) -> str | None:
        """Why the latest session with this id ended, if it ended after the horizon."""
        rows = self._query(
            """SELECT reason FROM sessions WHERE tenant = ? AND session_id = ?
            AND ended_at > ? ORDER BY ended_at DESC, opened_at DESC LIMIT 1""",
            tenant,
            session_id,
            horizon,
        )
        return rows[0][0] if rows else None

    def executions(self, tenant: str, session_id: str, horizon: float) -> list[Row]:
        """Executions of the sessions with this id that ended after the horizon, oldest first.

        Returns:
            key of the session, number, id, packages, accepted_at, client, user
        """
        return self._query(
            """SELECT key, number, id, packages, accepted_at, executions.client, executions."user"
            FROM sessions JOIN executions ON session_key = key
            WHERE tenant = ? AND session_id = ? AND sessions.ended_at > ? ORDER BY number""",
            tenant,
            session_id,
            horizon,
        )

    def execution(
        self, tenant: str, session_id: str, execution_id: str, horizon: float
    ) -> Row | None:
        """The latest execution with this id, unless its session ended before the horizon.

        Returns:
            whether neither it nor its session has ended; number, request, packages, findings, accepted_at,
            client, user
        """
        rows = self._query(
            """SELECT sessions.ended_at IS NULL AND executions.ended_at IS NULL,
                number, request, packages, findings, accepted_at, executions.client, executions."user"
            FROM sessions JOIN executions ON session_key = key
            WHERE tenant = ? AND session_id = ? AND id = ?
                AND (sessions.ended_at IS NULL OR sessions.ended_at > ?)
            ORDER BY number DESC LIMIT 1""",
            tenant,
            session_id,
            execution_id,
            horizon,
        )
        return rows[0] if rows else None

    def last_key(self, tenant: str, session_id: str, horizon: float) -> str | None:
        """The key of the session with this id that ended last."""
        rows = self._query(
            """SELECT key FROM sessions WHERE tenant = ? AND session_id = ? AND ended_at > ?
            ORDER BY ended_at DESC, opened_at DESC LIMIT 1""",
            tenant,
            session_id,
            horizon,
        )
        return rows[0][0] if rows else None

    def past_sessions(self, tenant: str, horizon: float, before: Place | None) -> Iterator[Row]:
        """Sessions that ended after the horizon, the latest first.

        Args:
            before: the end and the key of the session to go on behind.

        Yields:
            key, session_id, options, opened_at, ended_at, reason, client, user, the number of executions,
            and of the last one, or None: number, id, request, accepted_at, client, user
        """
        while True:
            ended_at, key = before or (math.inf, "")
            rows = self._query(
                """SELECT key, session_id, options, opened_at, sessions.ended_at, reason, sessions.client,
                    sessions."user", (SELECT count(*) FROM executions WHERE session_key = key),
                    last.number, last.id, request, accepted_at, last.client, last."user"
                FROM sessions LEFT JOIN executions AS last ON last.number =
                    (SELECT max(number) FROM executions WHERE session_key = key)
                WHERE tenant = ? AND sessions.ended_at > ? AND (sessions.ended_at, key) < (?, ?)
                ORDER BY sessions.ended_at DESC, key DESC LIMIT ?""",
                tenant,
                horizon,
                ended_at,
                key,
                _PAGE,
            )
            yield from rows
            if len(rows) < _PAGE:
                return
            before = (rows[-1][4], rows[-1][0])

    def session(self, key: str) -> list[Row]:
        """The executions of a session.

        Returns:
            number, id, request, packages, findings, accepted_at, client, user, size
        """
        return self._query(
            """SELECT number, id, request, packages, findings, accepted_at, client, "user", size
            FROM executions WHERE session_key = ? ORDER BY number""",
            key,
        )

    def session_of(self, tenant: str, execution_id: str, horizon: float) -> str | None:
        """The session_id of the latest execution with this id, unless it ended before the horizon."""
        rows = self._query(
            """SELECT session_id FROM executions JOIN sessions ON session_key = key
            WHERE id = ? AND tenant = ? AND (sessions.ended_at IS NULL OR sessions.ended_at > ?)
            ORDER BY number DESC LIMIT 1""",
            execution_id,
            tenant,
            horizon,
        )
        return rows[0][0] if rows else None

    def events(self, number: int, *, last: bool = False) -> list[bytes]:
        """The events of an execution as JSON, in order, or only the last one."""
        order = "DESC LIMIT 1" if last else ""
        query = f"SELECT json FROM events WHERE number = ? ORDER BY seq {order}"
        return [json for (json,) in self._query(query, number)]

    def session_events(self, key: str) -> list[bytes]:
        """The events of a session, as JSON, in order."""
        rows = self._query(
            "SELECT json FROM session_events WHERE session_key = ? ORDER BY seq", key
        )
        return [json for (json,) in rows]

    def entries(self) -> list[Row]:
        """All entries, the first to expire first: kind, tenant, name, value, until."""
        return self._query("SELECT * FROM entries ORDER BY until")

    def _query(self, statement: str, *values: object) -> list[Row]:
        rows: list[Row] = self._connection.execute(statement, values).fetchall()
        return rows
