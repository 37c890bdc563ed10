"""The table of leases: of all brokers, at most one owns a session, whatever they do and when."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kernelbroker_server.sessions.broker_leases import BrokerLeases, LeaseState, Superseded

from tests.support.postgres import Server

LEASE_S = 10.0
BROKERS = st.integers(0, 2)


class Brokers(RuleBasedStateMachine):
    """Three brokers take over from each other. Some are paused, and act late on what they believed.

    Each knows when its lease ends, by a clock of its own, which began earlier. Until then it may
    act without asking. The database alone decides what is stored.
    """

    connection: Any

    def __init__(self) -> None:
        super().__init__()
        for table in ("brokers", "sessions", "entries", "claims"):
            self.connection.execute(f"DELETE FROM {table}")
        self.connection.execute("DROP TABLE IF EXISTS clock")
        self.connection.execute("CREATE TABLE clock AS SELECT 0::float8 AS now")
        self.leases = BrokerLeases(self.connection, "(SELECT now FROM clock)")
        self.now = 0.0
        self.ids: list[int | None] = [None] * 3
        self.valid_until = [0.0] * 3
        self.epochs: dict[str, int] = {}
        self.sessions = 0

    def superseded(self, broker: int) -> None:
        """It learned that it has lost everything. It must have been late."""
        assert self.now >= self.valid_until[broker]
        self.ids[broker] = None

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.connection.execute("UPDATE clock SET now = %s", (self.now,))

    @rule(broker=BROKERS)
    def starts_or_renews(self, broker: int) -> None:
        if (known := self.ids[broker]) is None:
            new = self.ids[broker] = self.leases.register("http://x", "here", LEASE_S)
            assert all(new > each for each in self.ids if each not in (None, new))
        else:
            try:
                self.leases.renew(known, LEASE_S)
            except Superseded:
                self.superseded(broker)
                return
        self.valid_until[broker] = self.now + LEASE_S

    @rule(broker=BROKERS)
    def opens_a_session(self, broker: int) -> None:
        if (own := self.ids[broker]) is None:
            return
        self.sessions += 1
        try:
            with self.connection.transaction():
                self.leases.expect_owner(own)
                self.connection.execute(
                    "INSERT INTO sessions VALUES (%s, 't', %s, '', 0)",
                    (f"key{self.sessions}", f"s{self.sessions}"),
                )
                self.connection.execute(
                    "UPDATE sessions SET owner = %s WHERE key = %s", (own, f"key{self.sessions}")
                )
        except Superseded:
            self.superseded(broker)

    @rule(broker=BROKERS, other=BROKERS)
    def takes_over(self, broker: int, other: int) -> None:
        own, theirs = self.ids[broker], self.ids[other]
        if own is None or theirs is None or own == theirs:
            return
        state = {each.id: each for each in self.leases.brokers()}.get(theirs)
        try:
            estate = self.leases.take(theirs, own)
        except Superseded:
            self.superseded(broker)
            return
        if estate is None:
            assert state is None or not state.can_be_taken
            return
        assert self.now >= self.valid_until[other], "it could still act"
        assert estate.epoch > max(self.epochs.values(), default=0)
        self.epochs[str(theirs)] = estate.epoch

    @rule(broker=BROKERS)
    def leaves(self, broker: int) -> None:
        if (own := self.ids[broker]) is None:
            return
        self.valid_until[broker] = 0.0
        try:
            self.leases.change(own, LeaseState.LEFT)
        except Superseded:
            self.ids[broker] = None

    @invariant()
    def each_session_has_one_owner_that_exists(self) -> None:
        lost = self.connection.execute(
            "SELECT key FROM sessions WHERE owner NOT IN (SELECT id FROM brokers)"
        ).fetchall()
        assert lost == []

    @invariant()
    def who_may_act_owns_what_it_opened(self) -> None:
        known = {each.id for each in self.leases.brokers()}
        for broker, own in enumerate(self.ids):
            if own is not None and self.now < self.valid_until[broker]:
                assert own in known


def test_nobody_owns_what_another_one_owns(postgres: Server) -> None:
    """However brokers start, renew late, take over and leave, who may act owns what it has, and alone."""
    from kernelbroker_server.sessions.postgres_schema import migrate

    with psycopg.connect(postgres.new_database(), autocommit=True) as connection:
        migrate(connection)
        machine = type("Machine", (Brokers,), {"connection": connection})
        run_state_machine_as_test(
            machine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None)
        )


def test_a_fenced_broker_changes_nothing(postgres: Server) -> None:
    """Every write of a broker fails after another one has taken over; nothing of its transaction stays."""
    from kernelbroker_server.sessions.postgres_database import PostgresDatabase
    from kernelbroker_server.sessions.records import EntryPut

    url = postgres.new_database()
    one, two = PostgresDatabase(url), PostgresDatabase(url)
    try:
        one.broker, two.broker = (each.leases.register("", "here", 0.0) for each in (one, two))
        one.apply([EntryPut("kind", "t", "before", b"1", 1e12)])
        assert two.take(one.broker) is not None
        with pytest.raises(Superseded):
            one.apply([EntryPut("kind", "t", "after", b"2", 1e12)])
        with pytest.raises(Superseded):
            one.leases.renew(one.broker, 10)
        assert two.take(one.broker) is None
        assert [row[2] for row in two.entries()] == ["before"]
    finally:
        one.close()
        two.close()


def test_a_session_that_is_opened_meanwhile_counts(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reservation that becomes a session while another broker counts is counted, at any moment."""
    from kernelbroker_server.sessions.postgres_database import PostgresDatabase
    from kernelbroker_server.sessions.records import SessionOpened

    url = postgres.new_database()
    one, two = PostgresDatabase(url), PostgresDatabase(url)
    try:
        one.broker, two.broker = (each.leases.register("", "here", 60.0) for each in (one, two))
        read = two._query
        for moment in range(4):
            tenant, calls = f"t{moment}", 0
            opened = SessionOpened(f"key{moment}", tenant, "first", b"{}", 0.0)
            assert one.reserve(tenant, "first", 1)

            def query(*args: Any, moment: int = moment, opened: Any = opened) -> Any:
                nonlocal calls
                if calls == moment:
                    one.apply([opened])
                calls += 1
                return read(*args)

            monkeypatch.setattr(two, "_query", query)
            assert not two.reserve(tenant, "second", 1)
    finally:
        one.close()
        two.close()
