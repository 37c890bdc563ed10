"""The schema of the database, and how older ones become the present one.

A version is a function in `MIGRATIONS`, which makes it from the version before. Functions that were
released never change. The version of a file is its `user_version`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

APPLICATION_ID = 0x4B42_4B52
"""In the head of the file, so that `file` and we know whose it is."""


class NewerVersion(Exception):
    """A newer broker has made the file."""


def _version_1(connection: sqlite3.Connection) -> None:
    for statement in (
        # `applied`: the serial number of the journal's latest record that is in here.
        # `in_use`: 1 from the start of a broker to its orderly end.
        "CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO state VALUES ('applied', 0), ('in_use', 0)",
        """CREATE TABLE sessions (
            key TEXT PRIMARY KEY, tenant TEXT NOT NULL, session_id TEXT NOT NULL,
            options BLOB NOT NULL, opened_at REAL NOT NULL, ended_at REAL, reason TEXT
        ) WITHOUT ROWID""",
        "CREATE INDEX sessions_by_id ON sessions (tenant, session_id)",
        """CREATE TABLE executions (
            number INTEGER PRIMARY KEY, session_key TEXT NOT NULL, id TEXT NOT NULL,
            request BLOB NOT NULL, packages BLOB NOT NULL, findings BLOB NOT NULL,
            accepted_at REAL NOT NULL, begun INTEGER NOT NULL DEFAULT 0, ended_at REAL,
            size INTEGER NOT NULL
        )""",
        "CREATE INDEX executions_by_session ON executions (session_key, id)",
        "CREATE INDEX executions_by_end ON executions (ended_at)",
        """CREATE TABLE events (
            number INTEGER NOT NULL, seq INTEGER NOT NULL, json BLOB NOT NULL,
            PRIMARY KEY (number, seq)
        ) WITHOUT ROWID""",
        """CREATE TABLE entries (
            kind TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL,
            value BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (kind, tenant, name)
        ) WITHOUT ROWID""",
    ):
        connection.execute(statement)


def _version_2(connection: sqlite3.Connection) -> None:
    """Executions are found by their id alone."""
    connection.execute("CREATE INDEX executions_by_id ON executions (id)")


def _version_3(connection: sqlite3.Connection) -> None:
    """Another broker can go on with what runs."""
    for statement in (
        "ALTER TABLE sessions ADD COLUMN closing TEXT",
        "ALTER TABLE executions ADD COLUMN allow_stdin INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE executions ADD COLUMN progress BLOB NOT NULL DEFAULT x''",
    ):
        connection.execute(statement)


def _version_4(connection: sqlite3.Connection) -> None:
    """Executions have an origin."""
    for column in ("client", "user"):
        connection.execute(f"ALTER TABLE executions ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")


def _version_5(connection: sqlite3.Connection) -> None:
    """Sessions have events."""
    connection.execute(
        """CREATE TABLE session_events (
            session_key TEXT NOT NULL, seq INTEGER NOT NULL, json BLOB NOT NULL,
            PRIMARY KEY (session_key, seq)
        ) WITHOUT ROWID"""
    )


def _version_6(connection: sqlite3.Connection) -> None:
    """Sessions have an origin, and those of a tenant that have ended are listed."""
    for column in ("client", "user"):
        connection.execute(f"ALTER TABLE sessions ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
    connection.execute("CREATE INDEX sessions_by_end ON sessions (tenant, ended_at)")


Migration = Callable[[sqlite3.Connection], None]

MIGRATIONS: Sequence[Migration] = (
    _version_1,
    _version_2,
    _version_3,
    _version_4,
    _version_5,
    _version_6,
)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the file to the present version, in one transaction.

    Raises:
        NewerVersion: it has a later version; it was not changed.
        sqlite3.DatabaseError: it is damaged, or not a file of the store.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if version and application != APPLICATION_ID:
        raise sqlite3.DatabaseError("it is the file of another program")
    if version > len(migrations):
        raise NewerVersion(f"it has version {version}, and this broker knows {len(migrations)}")
    if version == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for migration in migrations[version:]:
            migration(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
