"""The leases of brokers that share a database: which broker owns what, and until when.

A broker registers under a number that is never used again, and renews its lease. When the lease has ended,
another broker takes over everything that it owns, in one transaction that removes its row. Every write of a
broker is fenced: its transaction locks the broker's own row, and fails if the row is gone. So a broker that
was paused, and wakes up when another one owns its sessions, can store nothing any more.

All times are those of the database, so the clocks of the machines do not matter.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from kernelbroker.protocol.codec import decode_json

NOW = "extract(epoch from clock_timestamp())::float8"


class LeaseState(enum.StrEnum):
    """What a broker does."""

    SERVES = "serves"
    LEAVES = "leaves"
    """It opens no sessions, and leaves those that it has to others soon."""
    LEFT = "left"
    """It has stopped. Others may take over what it has left, at once."""


class Superseded(Exception):
    """Another broker has taken over what this one owned."""


@dataclass(frozen=True, slots=True)
class BrokerLease:
    """A broker as the others see it.

    Attributes:
        url: where it answers other brokers; empty if it does not.
        place: brokers at the same place can take over each other's sandboxes.
        over: seconds since its lease has ended; less than 0 if it is valid.
    """

    id: int
    url: str
    place: str
    state: LeaseState
    over: float

    @property
    def serves(self) -> bool:
        """Whether requests can be passed on to it."""
        return self.state is LeaseState.SERVES and self.over < 0 and bool(self.url)

    @property
    def can_be_taken(self) -> bool:
        """Whether others may take over what it owns."""
        return self.state is LeaseState.LEFT or self.over >= 0


@dataclass(frozen=True, slots=True)
class Estate:
    """What was taken over.

    Attributes:
        epoch: higher than that of anybody who had it before.
        directories: the ids of directories with sandboxes, by the name of the backend.
    """

    epoch: int
    directories: Mapping[str, Sequence[str]] = field(default_factory=dict)


class BrokerLeases:
    """The table of leases. Everything here blocks, and raises psycopg.Error.

    Args:
        connection: with autocommit.
        now: an SQL expression for the present time, in seconds.
    """

    def __init__(self, connection: Any, now: str = NOW) -> None:
        self._connection = connection
        self._now = now

    def register(self, url: str, place: str, seconds: float) -> int:
        """Begin a lease. Returns the number of the broker."""
        return int(
            self._one(
                f"""INSERT INTO brokers VALUES (nextval('epochs'), %s, %s, '{{}}'::bytea, 'serves',
                {self._now} + %s) RETURNING id""",
                url,
                place,
                seconds,
            )[0]
        )

    def renew(self, broker: int, seconds: float) -> None:
        """Extend a lease, also one that has ended, if nobody has taken over. Raises Superseded."""
        self._change(
            f"UPDATE brokers SET until = {self._now} + %s WHERE id = %s AND state <> 'left'",
            seconds,
            broker,
        )

    def change(self, broker: int, state: LeaseState) -> None:
        """Record what the broker does. Raises Superseded."""
        self._change("UPDATE brokers SET state = %s WHERE id = %s", state.value, broker)

    def announce(self, broker: int, url: str, directories: Mapping[str, Sequence[str]]) -> None:
        """Record where it answers, and where its sandboxes are. Raises Superseded."""
        self._change(
            "UPDATE brokers SET url = %s, estate = %s WHERE id = %s",
            url,
            msgspec.json.encode(directories),
            broker,
        )

    def expect_owner(self, broker: int) -> None:
        """Let nobody take over until the transaction ends. Raises Superseded."""
        self._change(
            "SELECT 1 FROM brokers WHERE id = %s AND state <> 'left' FOR KEY SHARE", broker
        )

    def brokers(self) -> list[BrokerLease]:
        """Return all brokers that own something, or may."""
        rows = self._connection.execute(
            f"SELECT id, url, place, state, {self._now} - until FROM brokers ORDER BY id"
        ).fetchall()
        return [BrokerLease(i, url, place, LeaseState(s), over) for i, url, place, s, over in rows]

    def take(self, broker: int, taker: int) -> Estate | None:
        """Take over what a broker owned whose lease has ended, or that has left.

        Returns:
            None if its lease is valid, or another broker was faster.

        Raises:
            Superseded: the taker's own lease was taken.
        """
        with self._connection.transaction():
            self._change("SELECT 1 FROM brokers WHERE id = %s FOR UPDATE", taker)
            row = self._connection.execute(
                f"""DELETE FROM brokers WHERE id = %s AND (state = 'left' OR until <= {self._now})
                RETURNING estate""",
                (broker,),
            ).fetchone()
            if row is None:
                return None
            directories = decode_json(row[0], dict[str, list[str]])
            own = decode_json(
                self._one("SELECT estate FROM brokers WHERE id = %s", taker)[0],
                dict[str, list[str]],
            )
            for name, ids in directories.items():
                own[name] = [*own.get(name, ()), *ids]
            for statement, *values in (
                ("UPDATE brokers SET estate = %s WHERE id = %s", msgspec.json.encode(own), taker),
                (
                    "UPDATE sessions SET owner = %s, taken = 1 WHERE owner = %s AND ended_at IS NULL",
                    taker,
                    broker,
                ),
                ("UPDATE entries SET owner = %s WHERE owner = %s", taker, broker),
                ("UPDATE claims SET owner = %s WHERE owner = %s", taker, broker),
                ("DELETE FROM tenant_usage WHERE owner = %s", broker),
            ):
                self._connection.execute(statement, values)
            return Estate(int(self._one("SELECT nextval('epochs')")[0]), directories)

    def remove(self, broker: int) -> None:
        """End a lease of a broker that owns nothing any more."""
        self._connection.execute("DELETE FROM brokers WHERE id = %s", (broker,))

    def _change(self, statement: str, *values: object) -> None:
        if not self._connection.execute(statement, values).rowcount:
            raise Superseded

    def _one(self, statement: str, *values: object) -> Any:
        return self._connection.execute(statement, values).fetchone()
