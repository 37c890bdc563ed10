"""The PostgreSQL database of a store. One thread uses it. Everything here blocks, and raises psycopg.Error.

A commit does not wait for the disk (`synchronous_commit = off`), as with SQLite: what is committed survives
the death of any broker, but the last moments may be lost if the machine of the database loses power.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker.protocol.messages import SessionOptions

from .broker_leases import NOW, BrokerLeases, Estate, LeaseState
from .changes import changes
from .postgres_connection import PatientConnection, connect
from .postgres_schema import MIGRATIONS, Migration, migrate
from .queries import Queries, Row, Unended
from .records import EntryPut, Record, SessionOpened

_DELETED_AT_ONCE = 200
"""Executions that one transaction deletes."""
_HURRY_S = 2.0
_OPENING, _OPENING_S = "opening", 300.0
"""The kind of claims on room for a session that is being opened, and how long one may take."""


class PostgresDatabase(Queries):
    """A database that several brokers share, as one of them sees it.

    Args:
        url: as libpq reads it: `postgresql://USER@HOST/NAME`.
        patience: seconds for one answer of the server.

    Attributes:
        broker: the number of the lease; 0 before `register`.
    """

    _connection: PatientConnection

    def __init__(
        self, url: str, migrations: Sequence[Migration] = MIGRATIONS, *, patience: float = 30.0
    ) -> None:
        """Connect, and bring the tables to the present version. Raises NewerSchema."""
        self.broker = 0
        self._url = url
        self._patience = patience
        super().__init__(self._connect())
        try:
            migrate(self._connection, migrations)
        except BaseException:
            self._connection.close()
            raise

    def _connect(self) -> PatientConnection:
        return connect(
            self._url, "store", patience=self._patience, options="-c synchronous_commit=off"
        )

    def reconnect(self) -> None:
        """Connect again if the connection is broken."""
        if self._connection.broken or self._connection.closed:
            self._connection.close()
            self._connection = self._connect()

    def hurry(self) -> None:
        """Wait for seconds at most, from now on and for what is asked now. Another thread may call this."""
        self._connection.patience = self._patience = _HURRY_S

    def close(self) -> None:
        self._connection.close()

    @property
    def leases(self) -> BrokerLeases:
        return BrokerLeases(self._connection)

    @property
    def connected_leases(self) -> BrokerLeases:
        """The same, behind `reconnect`. Not within a transaction."""
        self.reconnect()
        return self.leases

    def last_number_of(self, keys: Collection[str]) -> int:
        """The highest number of an execution of these sessions."""
        rows = self._query(
            "SELECT coalesce(max(number), 0) FROM executions WHERE session_key = ANY(?)", [*keys]
        )
        return int(rows[0][0])

    # Changes.

    def apply(self, records: Sequence[Record]) -> None:
        """Store records in one transaction. Raises Superseded."""
        sessions = [each for each in records if isinstance(each, SessionOpened)]
        opened = [(self.broker, each.key) for each in sessions]
        put = [
            (self.broker, each.kind, each.tenant, each.name)
            for each in records
            if isinstance(each, EntryPut)
        ]
        self.reconnect()
        with self._connection.transaction():
            self.leases.expect_owner(self.broker)
            with self._connection.cursor() as cursor:
                for statement, rows in (
                    *changes(records),
                    ("UPDATE sessions SET owner = ? WHERE key = ?", opened),
                    (
                        "DELETE FROM claims WHERE kind = ? AND tenant = ? AND name = ?",
                        [(_OPENING, each.tenant, each.session_id) for each in sessions],
                    ),
                    (
                        "UPDATE entries SET owner = ? WHERE kind = ? AND tenant = ? AND name = ?",
                        put,
                    ),
                ):
                    if rows:
                        cursor.executemany(_sql(statement), [[*map(_value, row)] for row in rows])

    def take(self, broker: int) -> Estate | None:
        """Take over what a broker owned; see `BrokerLeases.take`."""
        return self.leases.take(broker, self.broker)

    def reserve(self, tenant: str, session_id: str, limit: int) -> bool:
        """See `EventStore.reserve`."""
        self.reconnect()
        with self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (tenant,))
            # The reservations first: one that becomes a session meanwhile is then seen as that.
            reserved = self._query(
                f"SELECT name FROM claims WHERE kind = ? AND tenant = ? AND until > {NOW}",
                _OPENING,
                tenant,
            )
            rows = self._query(
                "SELECT session_id, options FROM sessions WHERE tenant = ? AND ended_at IS NULL",
                tenant,
            )
            taken = {name for (name,) in reserved} | {
                name for name, options in rows if not _is_context(options)
            }
            if session_id not in taken and len(taken) >= limit:
                return False
            self._connection.execute(
                f"""INSERT INTO claims VALUES (%s, %s, %s, %s, {NOW} + %s)
                ON CONFLICT (kind, tenant, name) DO UPDATE SET until = excluded.until""",
                (_OPENING, tenant, session_id, self.broker, _OPENING_S),
            )
        return True

    def unreserve(self, tenant: str, session_id: str) -> None:
        """See `EventStore.unreserve`."""
        self.reconnect()
        self._connection.execute(
            "DELETE FROM claims WHERE kind = %s AND tenant = %s AND name = %s",
            (_OPENING, tenant, session_id),
        )

    def leave(self) -> None:
        """End the lease. What is still open can be taken over at once."""
        left = self._query(
            "SELECT 1 FROM sessions WHERE owner = ? AND ended_at IS NULL", self.broker
        )
        estate = self._query("SELECT 1 FROM brokers WHERE id = ? AND estate <> '{}'", self.broker)
        if left or estate:
            self.leases.change(self.broker, LeaseState.LEFT)
        else:
            self.leases.remove(self.broker)

    def end_lost(
        self,
        results: Sequence[tuple[int, int, bytes]],
        reason: str,
        at: float,
        adopted: Collection[str],
    ) -> None:
        """End the sessions that were taken over and not adopted, and executions of `unended`."""
        with self._connection.transaction():
            self.leases.expect_owner(self.broker)
            with self._connection.cursor() as cursor:
                if results:
                    cursor.executemany("INSERT INTO events VALUES (%s, %s, %s)", results)
                    cursor.executemany(
                        "UPDATE executions SET ended_at = %s, size = size + %s WHERE number = %s",
                        [(at, len(json), number) for number, _, json in results],
                    )
                cursor.execute(
                    """UPDATE sessions SET ended_at = %s, reason = %s
                    WHERE owner = %s AND taken = 1 AND ended_at IS NULL AND NOT key = ANY(%s)""",
                    (at, reason, self.broker, [*adopted]),
                )
                cursor.execute("UPDATE sessions SET taken = 0 WHERE owner = %s", (self.broker,))

    def expire(self, horizon: float, max_bytes: int, now: float) -> bool:
        """Remove some of what is too old, or too much; see `Database.expire`."""
        old = self._query(
            """SELECT number, size FROM executions WHERE session_key IN
            (SELECT key FROM sessions WHERE ended_at <= ?) LIMIT ?""",
            horizon,
            _DELETED_AT_ONCE,
        )
        ((held,),) = self._query("SELECT coalesce(sum(size), 0) FROM executions")
        if not old and 0 < max_bytes < held:
            for row in self._query(
                """SELECT number, size FROM executions WHERE ended_at IS NOT NULL
                ORDER BY ended_at LIMIT ?""",
                _DELETED_AT_ONCE,
            ):
                old.append(row)
                held -= row[1]
                if held <= max_bytes:
                    break
        numbers = [number for number, _ in old]
        with self._connection.transaction():
            run = self._connection.execute
            run("DELETE FROM events WHERE number = ANY(%s)", (numbers,))
            run("DELETE FROM executions WHERE number = ANY(%s)", (numbers,))
            run("DELETE FROM entries WHERE until <= %s", (now,))
            run("DELETE FROM claims WHERE until <= %s", (now,))
            if not numbers:
                gone = "(SELECT key FROM sessions WHERE ended_at <= %s)"
                run(f"DELETE FROM session_events WHERE session_key IN {gone}", (horizon,))
                run("DELETE FROM sessions WHERE ended_at <= %s", (horizon,))
        return bool(numbers)

    def expire_at(self, retention: float, max_bytes: int, clock: Callable[[], float]) -> bool:
        """As `expire`, at the present time."""
        now = clock()
        return self.expire(now - retention, max_bytes, now)

    # Queries that differ: what is open belongs to brokers.

    def unended(self) -> list[Unended]:
        mine = {key for key, *_ in self.open_sessions()}
        return [each for each in super().unended() if each.key in mine]

    def open_sessions(self) -> list[Row]:
        """Sessions that this broker has taken over, and does not have yet; see `Queries.open_sessions`."""
        return self._query(
            """SELECT key, tenant, session_id, options, opened_at, client, "user", closing
            FROM sessions WHERE ended_at IS NULL AND owner = ? AND taken = 1 ORDER BY opened_at""",
            self.broker,
        )

    def entries(self) -> list[Row]:
        return self._query(
            """SELECT kind, tenant, name, value, until FROM entries WHERE owner = ? ORDER BY until""",
            self.broker,
        )

    def _query(self, statement: str, *values: object) -> list[Row]:
        self.reconnect()
        cursor = self._connection.execute(_sql(statement), [*map(_value, values)])
        rows: list[Row] = cursor.fetchall()
        return rows


def _sql(statement: str) -> str:
    return statement.replace("?", "%s")


def _value(value: object) -> object:
    """What PostgreSQL can store: its texts have no NUL and no lone surrogates."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    return value


def _is_context(options: bytes) -> bool:
    """Whether stored options are those of a context. What cannot be read counts as a session."""
    try:
        return decode_as(options, SessionOptions).context_of is not None
    except ProtocolError:
        return False
