"""The schema on PostgreSQL, and how older ones become the present one.

As in `schema.py`: a version is a function in `MIGRATIONS`, and functions that were released never change.
The version stands in the table `state`. Columns that both databases have are in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_LOCK = 0x4B42_4B52
"""Of the migration: brokers that start at the same time take turns."""


class NewerSchema(Exception):
    """A newer broker has made the tables."""


def _version_1(connection: Any) -> None:
    for statement in (
        # Numbers of brokers, and epochs of what they have taken over. None is used twice.
        "CREATE SEQUENCE epochs",
        # A broker owns what its rows in the other tables say until its lease ends. See `broker_leases.py`.
        """CREATE TABLE brokers (
            id BIGINT PRIMARY KEY, url TEXT NOT NULL, place TEXT NOT NULL, estate BYTEA NOT NULL,
            state TEXT NOT NULL, until DOUBLE PRECISION NOT NULL
        )""",
        # `taken` is 1 from the moment a broker takes the session over until it has it, or has ended it.
        """CREATE TABLE sessions (
            key TEXT COLLATE "C" PRIMARY KEY, tenant TEXT NOT NULL, session_id TEXT NOT NULL,
            options BYTEA NOT NULL, opened_at DOUBLE PRECISION NOT NULL,
            ended_at DOUBLE PRECISION, reason TEXT, closing TEXT,
            client TEXT NOT NULL DEFAULT '', "user" TEXT NOT NULL DEFAULT '',
            owner BIGINT NOT NULL DEFAULT 0, taken INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX sessions_by_id ON sessions (session_id, tenant)",
        "CREATE INDEX sessions_by_end ON sessions (tenant, ended_at)",
        "CREATE INDEX sessions_open ON sessions (owner) WHERE ended_at IS NULL",
        """CREATE TABLE executions (
            number BIGINT PRIMARY KEY, session_key TEXT COLLATE "C" NOT NULL, id TEXT NOT NULL,
            request BYTEA NOT NULL, packages BYTEA NOT NULL, findings BYTEA NOT NULL,
            accepted_at DOUBLE PRECISION NOT NULL, begun INTEGER NOT NULL DEFAULT 0,
            ended_at DOUBLE PRECISION, size BIGINT NOT NULL,
            allow_stdin INTEGER NOT NULL DEFAULT 0, progress BYTEA NOT NULL DEFAULT '',
            client TEXT NOT NULL DEFAULT '', "user" TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX executions_by_session ON executions (session_key, id)",
        "CREATE INDEX executions_by_id ON executions (id)",
        "CREATE INDEX executions_by_end ON executions (ended_at)",
        """CREATE TABLE events (
            number BIGINT NOT NULL, seq INTEGER NOT NULL, json BYTEA NOT NULL,
            PRIMARY KEY (number, seq)
        )""",
        """CREATE TABLE session_events (
            session_key TEXT COLLATE "C" NOT NULL, seq INTEGER NOT NULL, json BYTEA NOT NULL,
            PRIMARY KEY (session_key, seq)
        )""",
        """CREATE TABLE entries (
            kind TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL,
            value BYTEA NOT NULL, until DOUBLE PRECISION NOT NULL, owner BIGINT NOT NULL DEFAULT 0,
            PRIMARY KEY (kind, tenant, name)
        )""",
        # Which broker answers requests with a name that no session has yet: the id of one that is being
        # opened, an idempotency key.
        """CREATE TABLE claims (
            kind TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL,
            owner BIGINT NOT NULL, until DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (kind, tenant, name)
        )""",
        "CREATE INDEX claims_by_owner ON claims (owner)",
        # What a tenant uses at each broker, for the limits of all of them together.
        """CREATE TABLE tenant_usage (
            tenant TEXT NOT NULL, name TEXT NOT NULL, owner BIGINT NOT NULL,
            value DOUBLE PRECISION NOT NULL, PRIMARY KEY (tenant, name, owner)
        )""",
    ):
        connection.execute(statement)


Migration = Callable[[Any], None]

MIGRATIONS: Sequence[Migration] = (_version_1,)


def migrate(connection: Any, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the tables to the present version, in one transaction.

    Raises:
        NewerSchema: they have a later version; they were not changed.
        psycopg.Error
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute(
            "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BIGINT NOT NULL)"
        )
        row = connection.execute("SELECT value FROM state WHERE name = 'version'").fetchone()
        version = 0 if row is None else row[0]
        if version > len(migrations):
            raise NewerSchema(
                f"it has version {version}, and this broker knows {len(migrations)}: start a newer broker"
            )
        for migration in migrations[version:]:
            migration(connection)
        connection.execute(
            """INSERT INTO state VALUES ('version', %s)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value""",
            (len(migrations),),
        )
