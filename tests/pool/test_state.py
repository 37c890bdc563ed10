"""The rules of the pool, by a stateful property test and by examples."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kernelbroker_server.pool.sandboxes import IllegalTransition, SandboxState
from kernelbroker_server.pool.state import (
    Action,
    Assign,
    Check,
    Launch,
    Place,
    PoolFull,
    PoolLimits,
    PoolState,
    Refuse,
    Remove,
)

from tests.support.generated import repeatable

TTL_S, CHECK_S = 100.0, 20.0
LONG_S = 1000.0


def make(
    min_size: int = 0,
    max_size: int = 3,
    max_waiters: int = 3,
    launches: int = 2,
    **rules: float,
) -> PoolState:
    ids = itertools.count(1)
    off = {"container_ttl": 0.0, "health_check_interval": 0.0, "scale_up_threshold": 1000.0}
    limits = PoolLimits(min_size, max_size, max_waiters, launches, **off | rules)
    return PoolState(limits, lambda: f"s{next(ids)}")


class PoolMachine(RuleBasedStateMachine):
    """A random runner: it carries out actions late, in any order, or not for a long time."""

    @initialize(
        min_size=st.integers(0, 4),
        max_size=st.integers(1, 5),
        max_waiters=st.integers(0, 4),
        launches=st.integers(1, 3),
        up=st.sampled_from([0.5, 0.8, 1.5, 1000.0]),
        ttl=st.sampled_from([0.0, TTL_S]),
        interval=st.sampled_from([0.0, CHECK_S]),
    )
    def begin(
        self,
        min_size: int,
        max_size: int,
        max_waiters: int,
        launches: int,
        up: float,
        ttl: float,
        interval: float,
    ) -> None:
        self.state = make(
            min_size,
            max_size,
            max_waiters,
            launches,
            scale_up_threshold=up,
            container_ttl=ttl,
            health_check_interval=interval,
        )
        self.names = itertools.count()
        self.waiting: deque[int] = deque()
        self.urgent: deque[int] = deque()
        self.own: list[int] = []
        """Those that wait for a place for a sandbox of their own."""
        self.launch_was_last = False
        """Whether the last place went to a launch while one of them waited."""
        self.tenants: dict[int, str] = {}
        self.served: dict[str, set[str]] = {}
        """Of each tenant that waits: who was served since it was, or since it began to wait."""
        self.launching: list[str] = []
        self.checking: list[str] = []
        self.idle: list[str] = []
        self.removing: list[str] = []
        self.leased: list[str] = []
        self.seen: set[str] = set()
        self.draining = self.closed = False
        self.now = self.held_until = 0.0
        self.carry_out(self.state.tick(self.now))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Launch(sandbox_id=name):
                    assert name not in self.seen
                    assert not self.closed
                    assert self.now >= self.held_until
                    self.seen.add(name)
                    self.launching.append(name)
                    assert not (self.own and self.launch_was_last and not self.urgent)
                    self.launch_was_last = bool(self.own)
                case Place(waiter=waiter, sandbox_id=name):
                    assert name not in self.seen
                    assert not self.closed
                    self.seen.add(name)
                    self.own.remove(waiter)
                    self.leased.append(name)
                    self.launch_was_last = False
                case Check(sandbox_id=name):
                    assert not self.closed
                    self.idle.remove(name)
                    self.checking.append(name)
                case Remove(sandbox_id=name):
                    for warm in (self.idle, self.checking):
                        if name in warm:
                            warm.remove(name)
                    assert name in self.seen
                    assert name not in (*self.removing, *self.leased, *self.launching)
                    self.removing.append(name)
                case Assign(waiter=waiter, sandbox_id=name):
                    if self.urgent:  # they come first
                        assert waiter == self.urgent.popleft()
                    else:
                        self.take_turn(waiter)
                    self.idle.remove(name)  # and from there alone: neither leased nor checked
                    self.leased.append(name)

                case Refuse(waiter=waiter):
                    own = self.waiters_of(self.tenants[waiter])
                    assert waiter == own[-1]
                    assert len(own) == max(len(self.waiters_of(name)) for name in "abc")
                    newcomer = self.tenants[self.waiting[-1]]
                    assert len(self.waiters_of(newcomer)) < len(own)  # itself included
                    assert len(self.waiting) > self.state.limits.max_waiters
                    self.waiting.remove(waiter)

    def waiters_of(self, tenant: str) -> list[int]:
        return [waiter for waiter in self.waiting if self.tenants[waiter] == tenant]

    def take_turn(self, waiter: int) -> None:
        """Check that a served caller is the first of its tenant, and that tenants take turns."""
        tenant = self.tenants[waiter]
        assert waiter == self.waiters_of(tenant)[0]
        self.waiting.remove(waiter)
        self.served[tenant] = set()
        for other in {self.tenants[each] for each in self.waiting} - {tenant}:
            assert tenant not in self.served[other]
            self.served[other].add(tenant)

    def taken(self, data: st.DataObject, names: list[str]) -> str:
        name = data.draw(st.sampled_from(names))
        names.remove(name)
        return name

    @rule(urgent=st.booleans(), tenant=st.sampled_from("abc"))
    def acquire(self, urgent: bool, tenant: str) -> None:
        waiter = next(self.names)
        self.tenants[waiter] = tenant
        if not urgent and not self.waiters_of(tenant):
            self.served[tenant] = set()
        queue = self.urgent if urgent else self.waiting
        queue.append(waiter)
        try:
            self.carry_out(self.state.acquire(waiter, tenant=tenant, urgent=urgent))
        except PoolFull:
            assert not urgent
            assert not self.idle
            assert len(self.waiting) > self.state.limits.max_waiters
            own = len(self.waiters_of(tenant))
            assert all(len(self.waiters_of(name)) <= own for name in "abc")
            queue.remove(waiter)

    @rule(urgent=st.booleans(), tenant=st.sampled_from("abc"))
    def acquire_own(self, urgent: bool, tenant: str) -> None:
        waiter = next(self.names)
        self.own.append(waiter)
        try:
            self.carry_out(self.state.acquire_own(waiter, tenant=tenant, urgent=urgent))
        except PoolFull:
            assert not urgent
            assert len(self.own) > self.state.limits.max_waiters
            self.own.remove(waiter)

    @precondition(lambda self: self.own)
    @rule(data=st.data())
    def cancel_own(self, data: st.DataObject) -> None:
        self.state.cancel(self.taken(data, self.own))

    @precondition(lambda self: self.waiting or self.urgent)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from([*self.waiting, *self.urgent]))
        self.state.cancel(waiter)
        (self.waiting if waiter in self.waiting else self.urgent).remove(waiter)

    @rule(waiter=st.integers(10_000, 10_001))
    def cancel_an_unknown_waiter(self, waiter: int) -> None:
        self.state.cancel(waiter)

    @precondition(lambda self: self.launching)
    @rule(data=st.data())
    def launched(self, data: st.DataObject) -> None:
        name = self.taken(data, self.launching)
        self.idle.append(name)
        self.carry_out(self.state.launched(name))

    @precondition(lambda self: self.launching)
    @rule(data=st.data())
    def launch_failed(self, data: st.DataObject) -> None:
        pause = self.state.launch_failed(self.taken(data, self.launching))
        assert 0 < pause <= LONG_S
        self.held_until = max(self.held_until, self.now + pause)

    @precondition(lambda self: self.checking)
    @rule(healthy=st.booleans())
    def checked(self, healthy: bool) -> None:
        (name,) = self.checking
        if healthy:
            self.checking.remove(name)
            self.idle.append(name)
        self.carry_out(self.state.checked(name, healthy=healthy))
        assert healthy or name in self.removing

    @precondition(lambda self: self.seen - set(self.checking))
    @rule(data=st.data(), healthy=st.booleans())
    def checked_too_late(self, data: st.DataObject, healthy: bool) -> None:
        """Report the check of a sandbox that died meanwhile, or whose pool was closed."""
        name = data.draw(st.sampled_from(sorted(self.seen - set(self.checking))))
        assert self.state.checked(name, healthy=healthy) == []

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 30.0, LONG_S]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        before = set(self.removing)
        self.carry_out(self.state.tick(self.now))
        # At most one because of its age, one because of a low load, and one to make room.
        assert len(set(self.removing) - before) <= 3
        if self.own and not self.closed:  # nothing is left that one of them could have
            assert self.state.count() >= self.state.limits.max_size
            assert self.removing or not self.idle

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.carry_out(self.state.release(self.taken(data, self.leased)))

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def died(self, data: st.DataObject) -> None:
        self.carry_out(self.state.died(data.draw(st.sampled_from(sorted(self.seen)))))

    @precondition(lambda self: self.removing)
    @rule(data=st.data())
    def removed(self, data: st.DataObject) -> None:
        self.carry_out(self.state.removed(self.taken(data, self.removing)))

    @precondition(lambda self: self.now > 100)
    @rule()
    def drain(self) -> None:
        self.draining = True
        self.state.drain()

    @precondition(lambda self: self.now > 200)  # not too early, or there is little to close
    @rule()
    def close(self) -> None:
        self.closed = True
        self.carry_out(self.state.close())

    @invariant()
    def holds(self) -> None:
        state = self.state
        state.validate_state()
        assert state.waiters == len(self.waiting) + len(self.urgent)
        assert state.own_waiters == len(self.own)
        for name, there in {
            SandboxState.STARTING: self.launching,
            SandboxState.IDLE: self.idle,
            SandboxState.CHECKING: self.checking,
            SandboxState.LEASED: self.leased,
            SandboxState.REMOVING: self.removing,
        }.items():
            assert state.count(name) == len(there)
        assert state.empty == (state.count() == 0)

    @invariant()
    def launches_for_waiters(self) -> None:
        """While callers wait and there is room, a sandbox is being launched or checked."""
        room = self.state.count() < self.state.limits.max_size
        if self.state.waiters and room and not (self.state.back_off or self.closed):
            assert self.launching or self.checking

    def complete_all_actions(self) -> None:
        """Carry out actions, all of them successfully, until none is left."""
        for _ in range(100):
            if not (self.launching or self.checking or self.removing):
                return
            for name in list(self.launching):
                self.launching.remove(name)
                self.idle.append(name)
                self.carry_out(self.state.launched(name))
            for name in list(self.checking):
                self.checking.remove(name)
                self.idle.append(name)
                self.carry_out(self.state.checked(name, healthy=True))
            for name in list(self.removing):
                self.removing.remove(name)
                self.carry_out(self.state.removed(name))
            self.holds()
        raise AssertionError("there is always something more to do")

    def settles(self) -> None:
        """Without further disturbance every caller is served, and the pool returns to `min_size`."""
        limits = self.state.limits
        for _ in range(2 * (self.state.waiters + self.state.own_waiters) + 2):
            for name in list(self.leased):
                self.leased.remove(name)
                self.carry_out(self.state.release(name))
            self.now += LONG_S
            self.carry_out(self.state.tick(self.now))
            self.complete_all_actions()
        assert not self.waiting
        assert not self.urgent
        assert not self.own
        if self.draining:
            assert self.state.spare == 0
            return
        for _ in range(limits.max_size + 2):
            self.now += 10.0
            self.carry_out(self.state.tick(self.now))
            self.complete_all_actions()
        assert len(self.idle) == min(limits.min_size, limits.max_size)
        assert self.state.spare == limits.min_size

    def teardown(self) -> None:
        """From any state the pool settles; a closed pool removes all sandboxes."""
        if not hasattr(self, "state"):
            return
        if not self.closed:
            self.settles()
        self.closed = True
        self.carry_out(self.state.close())
        for name in list(self.leased):
            self.leased.remove(name)
            self.carry_out(self.state.release(name))
        self.complete_all_actions()
        assert self.state.empty


def test_invariants_hold_after_any_sequence_of_events() -> None:
    """Invariants hold after every step, and afterwards the pool settles."""
    run_state_machine_as_test(
        PoolMachine, settings=settings(repeatable, max_examples=300, stateful_step_count=50)
    )


def test_fills_to_min_size() -> None:
    """A pool launches `min_size` sandboxes, at most `max_launches` at once."""
    state = make(min_size=3, max_size=5, launches=2)
    assert state.tick(0) == [Launch("s1"), Launch("s2")]
    assert state.launched("s1") == [Launch("s3")]
    assert state.launched("s2") == []
    assert state.launched("s3") == []
    assert state.count(SandboxState.IDLE) == 3


def test_an_idle_sandbox_is_assigned_at_once() -> None:
    """An idle sandbox is assigned at once, and a replacement is launched."""
    state = make(min_size=1)
    state.tick(0)
    state.launched("s1")
    assert state.acquire(1) == [Assign(1, "s1"), Launch("s2")]


def test_waiters_are_served_in_order() -> None:
    """Waiters are served in order, urgent ones first; those that left are skipped."""
    state = make(max_size=4, max_waiters=10, launches=4)
    for waiter in (1, 2, 3):
        state.acquire(waiter)
    state.acquire(4, urgent=True)
    state.cancel(1)
    assert Assign(4, "s1") in state.launched("s1")
    assert Assign(2, "s2") in state.launched("s2")
    assert Assign(3, "s3") in state.launched("s3")


def test_the_number_of_waiters_is_bounded() -> None:
    """At most `max_waiters` wait besides urgent ones; a refused one changes nothing."""
    state = make(max_size=1, max_waiters=2)
    state.acquire(1)
    state.acquire(2)
    with pytest.raises(PoolFull):
        state.acquire(3)
    assert state.waiters == 2
    assert state.acquire(4, urgent=True) == []
    assert Assign(4, "s1") in state.launched("s1")


def test_tenants_take_turns() -> None:
    """A tenant with many waiters does not delay the others."""
    state = make(max_size=5, max_waiters=10, launches=5)
    for waiter in (1, 2, 3):
        state.acquire(waiter, tenant="many")
    state.acquire(4, tenant="one")
    state.acquire(5, tenant="other")
    served = [a.waiter for n in range(1, 6) for a in state.launched(f"s{n}") if type(a) is Assign]
    assert served == [1, 4, 5, 2, 3]


def test_a_full_queue_is_shared_among_tenants() -> None:
    """The tenant with the most waiters loses its latest ones until another tenant has as many."""
    state = make(max_size=1, max_waiters=4)
    for waiter in (1, 2, 3, 4):
        state.acquire(waiter, tenant="many")
    with pytest.raises(PoolFull):
        state.acquire(5, tenant="many")
    assert state.acquire(6, tenant="one") == [Refuse(4)]
    assert state.acquire(7, tenant="one") == [Refuse(3)]
    for tenant in ("one", "many"):
        with pytest.raises(PoolFull):
            state.acquire(8, tenant=tenant)
    assert state.waiters == 4


def test_sandboxes_that_are_being_removed_count() -> None:
    """A sandbox counts against `max_size` until it is removed."""
    state = make(max_size=1)
    state.acquire(1)
    state.launched("s1")
    state.acquire(2)
    assert state.release("s1") == [Remove("s1")]
    assert state.removed("s1") == [Launch("s2")]


def test_a_failed_launch_is_followed_by_a_pause() -> None:
    """Nothing is launched during the pause, but warm sandboxes are leased."""
    state = make(min_size=2, max_size=4)
    state.tick(0)
    assert state.launch_failed("s1") == 0.5
    assert state.acquire(1) == []
    assert state.launched("s2") == [Assign(1, "s2")]
    assert state.tick(0.4) == []
    assert state.tick(0.5) == [Launch("s3"), Launch("s4")]


def test_pauses_grow_and_are_reset_by_a_success() -> None:
    """Each failure in a row makes the next pause longer, up to the longest; a success resets it."""
    state = make(min_size=1, max_size=1)
    now, pauses = 0.0, []
    for number in range(1, 9):
        assert state.tick(now) == [Launch(f"s{number}")]
        pauses.append(state.launch_failed(f"s{number}"))
        assert state.back_off == pauses[-1]
        now += pauses[-1]
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 15]
    state.tick(now)
    state.launched("s9")
    assert (state.failures, state.back_off) == (0, 0)
    state.died("s9")
    assert state.removed("s9") == [Launch("s10")]
    assert state.launch_failed("s10") == 0.5


def test_a_dead_sandbox_is_replaced() -> None:
    """An idle sandbox that dies is removed and replaced; a leased one is left to its session."""
    state = make(min_size=1, max_size=3)
    state.tick(0)
    state.launched("s1")
    assert state.died("s1") == [Remove("s1"), Launch("s2")]
    assert state.died("s1") == []
    state.launched("s2")
    state.acquire(1)
    assert state.died("s2") == []
    assert Remove("s2") in state.release("s2")
    assert state.died("never heard of") == []


def test_a_draining_pool_launches_only_for_waiters() -> None:
    """A draining pool launches sandboxes for those who wait, and no others."""
    state = make(min_size=2, max_size=4, launches=3)
    state.acquire(1)
    for name in ("s1", "s2", "s3"):
        state.launched(name)
    state.drain()
    assert state.release("s1") == [Remove("s1")]
    assert state.died("s2") == [Remove("s2")]
    assert state.acquire(2) == [Assign(2, "s3")]
    assert state.acquire(3, urgent=True) == [Launch("s4")]
    assert state.launched("s4") == [Assign(3, "s4")]
    assert state.tick(LONG_S) == []
    state.validate_state()


def test_a_closed_pool_removes_its_sandboxes() -> None:
    """A closed pool removes idle sandboxes, late launches, and released ones."""
    state = make(min_size=2, max_size=4, launches=3)
    state.acquire(1)
    state.launched("s1")
    state.launched("s2")
    assert state.close() == [Remove("s2")]
    assert state.launched("s3") == [Remove("s3")]
    assert state.release("s1") == [Remove("s1")]
    for name in ("s1", "s2", "s3"):
        assert state.removed(name) == []
    assert state.empty


def test_an_illegal_transition_raises_with_the_history() -> None:
    """An illegal transition raises and carries the sandbox's history."""
    state = make(min_size=1)
    state.tick(0)
    with pytest.raises(IllegalTransition, match="s1 is not leased") as raised:
        state.release("s1")
    assert (raised.value.sandbox_id, raised.value.history) == ("s1", ("starting",))
    state.launched("s1")
    with pytest.raises(IllegalTransition, match=r"\['starting', 'idle'\]"):
        state.launched("s1")
    with pytest.raises(IllegalTransition, match=r"\['starting', 'idle'\]"):
        state.launch_failed("s1")
    with pytest.raises(IllegalTransition):
        state.removed("s1")
    state.acquire(1)
    state.release("s1")
    with pytest.raises(IllegalTransition, match="'leased', 'removing'"):
        state.release("s1")
    with pytest.raises(IllegalTransition):
        state.release("never heard of")


# Load.


def filled(count: int, **options: Any) -> PoolState:
    """A pool with so many idle sandboxes, at the time 0."""
    state = make(min_size=count, launches=count, **options)
    state.tick(0)
    for number in range(1, count + 1):
        state.launched(f"s{number}")
    return state


def test_grows_while_the_load_is_high() -> None:
    """While the load is high, one more sandbox is kept free each second, up to `max_size`."""
    state = filled(1, max_size=4, scale_up_threshold=0.5)
    assert state.acquire(1) == [Assign(1, "s1"), Launch("s2")]
    assert state.load == 0.5
    assert state.tick(1) == []  # seen for the first time
    assert state.tick(1.9) == []
    assert state.tick(2) == []  # one more is wanted, and one launch is under way already
    assert state.spare == 2
    assert state.launched("s2") == [Launch("s3")]
    assert state.launched("s3") == []
    for now in range(3, 10):
        state.tick(now)
    assert state.spare == 2  # one of three is leased
    state.acquire(2)
    for now in range(10, 20):
        state.tick(now)
    assert state.spare == 4
    assert state.count() == 4


def test_shrinks_while_the_load_is_low() -> None:
    """While the load is low, one sandbox less is kept free every ten seconds."""
    state = filled(1, max_size=4, scale_up_threshold=0.5)
    state._autoscaler.target = 3
    assert state.tick(0) == [Launch("s2")]
    assert state.launched("s2") == [Launch("s3")]
    state.launched("s3")
    assert state.tick(9) == []
    assert state.tick(10) == [Remove("s1")]
    assert state.tick(19) == []
    state.acquire(1)  # one of two: no longer quiet
    assert state.tick(20) == []
    state.release("s2")
    assert state.tick(21) == []
    assert state.tick(30) == []
    assert state.tick(31) != []
    assert state.spare == 1
    for now in (50, 70, 90):
        state.tick(now)
    assert state.spare == 1


def test_failing_launches_do_not_grow_the_pool() -> None:
    """While launches fail, the target does not grow."""
    state = make(min_size=0, max_size=9, scale_up_threshold=0.5)
    state.acquire(1)
    for now in range(0, 100, 5):
        state.tick(now)
        for name in state._sandboxes.names(SandboxState.STARTING):
            state.launch_failed(name)
        state.validate_state()
    assert state.spare == 0


# Age.


def test_an_old_sandbox_is_removed_when_its_replacement_is_warm() -> None:
    """If there is room, the new sandbox is warm before the old one is removed."""
    state = filled(1, max_size=2, container_ttl=TTL_S)
    assert state.tick(TTL_S - 1) == []
    assert state.tick(TTL_S) == [Launch("s2")]
    assert state.tick(TTL_S + 1) == []
    assert state.launched("s2") == [Remove("s1")]
    assert state.removed("s1") == []
    assert state.tick(TTL_S + 2) == []


def test_old_sandboxes_are_replaced_one_by_one() -> None:
    """Of several old sandboxes, one at a time is replaced."""
    state = filled(3, max_size=9, container_ttl=TTL_S)
    assert state.tick(TTL_S) == [Launch("s4")]
    assert state.launched("s4") == [Remove("s1"), Launch("s5")]
    assert state.launched("s5") == [Remove("s2"), Launch("s6")]
    assert state.launched("s6") == [Remove("s3")]
    assert state.count(SandboxState.IDLE) == 3


def test_an_old_sandbox_is_removed_first_if_there_is_no_room() -> None:
    """At `max_size` the old sandbox is removed before the new one is launched."""
    state = filled(1, max_size=1, container_ttl=TTL_S)
    assert state.tick(TTL_S) == [Remove("s1")]
    assert state.removed("s1") == [Launch("s2")]


def test_old_sandboxes_stay_while_launches_fail() -> None:
    """An old sandbox is better than none."""
    state = filled(1, max_size=2, container_ttl=TTL_S)
    state.tick(TTL_S)
    state.launch_failed("s2")
    assert state.tick(TTL_S + 0.1) == []
    assert state.acquire(1) == [Assign(1, "s1")]


# Health.


def test_one_sandbox_is_checked_at_a_time() -> None:
    """Each idle sandbox is checked once in an interval, one at a time."""
    state = filled(3, health_check_interval=CHECK_S)
    assert state.tick(CHECK_S - 1) == []
    assert state.tick(CHECK_S) == [Check("s1")]
    assert state.tick(CHECK_S + 1) == []
    assert state.checked("s1", healthy=True) == [Check("s2")]
    assert state.checked("s2", healthy=True) == [Check("s3")]
    assert state.checked("s3", healthy=True) == []
    assert state.tick(2 * CHECK_S) == []
    assert state.tick(2 * CHECK_S + 1) == [Check("s1")]


def test_an_unhealthy_sandbox_is_replaced() -> None:
    """An unhealthy sandbox is removed and not assigned meanwhile."""
    state = filled(1, max_size=3, max_waiters=0, health_check_interval=CHECK_S)
    assert state.tick(CHECK_S) == [Check("s1")]
    # One caller may wait although `max_waiters` is 0, since a sandbox is being checked.
    assert state.acquire(1) == [Launch("s2")]
    with pytest.raises(PoolFull):
        state.acquire(2)
    assert state.checked("s1", healthy=False) == [Remove("s1")]
    assert state.launched("s2") == [Assign(1, "s2"), Launch("s3")]


def test_a_checked_sandbox_goes_to_its_waiter() -> None:
    """A healthy sandbox is assigned at once to a caller that waited during its check."""
    state = filled(1, max_size=1, health_check_interval=CHECK_S)
    state.tick(CHECK_S)
    assert state.acquire(1) == []
    assert state.checked("s1", healthy=True) == [Assign(1, "s1")]


@pytest.mark.parametrize("end", ["died", "closed"])
def test_the_result_of_a_check_is_ignored_after_the_end(end: str) -> None:
    """The result of a check changes nothing if the sandbox is already being removed."""
    state = filled(1, max_size=1, health_check_interval=CHECK_S)
    state.tick(CHECK_S)
    assert (state.died("s1") if end == "died" else state.close()) == [Remove("s1")]
    assert state.checked("s1", healthy=True) == []
    assert state.count(SandboxState.REMOVING) == 1


def turns(state: PoolState, stream: Callable[[int], list[Action]], number: int) -> list[Action]:
    """What is given away in a full pool of one: each lease ends, while another caller of a stream waits."""
    given: list[Action] = []
    for turn in range(number):
        actions = [*stream(1000 + turn)]
        while not any(isinstance(each, Assign | Place) for each in actions):
            leased = [name for name, is_, _ in state.each() if is_ is SandboxState.LEASED]
            starting = [name for name, is_, _ in state.each() if is_ is SandboxState.STARTING]
            removing = [name for name, is_, _ in state.each() if is_ is SandboxState.REMOVING]
            for name in leased:
                actions += state.release(name)
            for name in [*removing, *leased]:
                actions += state.removed(name)
            for name in starting:
                actions += state.launched(name)
            state.validate_state()
        given += [each for each in actions if isinstance(each, Assign | Place)]
    return given


@pytest.mark.parametrize("own", [True, False])
def test_one_kind_of_callers_does_not_hold_up_the_other(own: bool) -> None:
    """A stream of callers for any sandbox does not hold up one for its own, nor the other way round."""
    state = make(max_size=1, max_waiters=100)
    stream, one = (state.acquire, state.acquire_own) if own else (state.acquire_own, state.acquire)
    stream(1)
    stream(2)
    one(3)
    given = turns(state, stream, 4)
    assert any(isinstance(each, Place if own else Assign) and each.waiter == 3 for each in given)


def test_a_sandbox_that_is_being_launched_makes_room() -> None:
    """Who asks for a place while the pool is being filled gets one as soon as a sandbox is free."""
    state = make(min_size=1, max_size=1)
    assert state.tick(0) == [Launch("s1")]
    assert state.acquire_own(1) == []
    assert state.launched("s1") == [Remove("s1")]
    assert state.removed("s1") == [Place(1, "s2")]


def test_those_who_wait_for_a_place_take_turns() -> None:
    """A tenant with many of them does not hold up another, and one that has lost its sandbox is first."""
    state = make(max_size=1, max_waiters=10)
    state.acquire_own(1, tenant="a")
    for waiter, tenant in ((2, "a"), (3, "a"), (4, "b")):
        assert state.acquire_own(waiter, tenant=tenant) == []
    assert state.acquire_own(5, tenant="a", urgent=True) == []
    order = []
    for _ in range(4):
        (name,) = [each for each, _, _ in state.each()]
        state.release(name)
        (place,) = state.removed(name)
        assert isinstance(place, Place)
        order.append(place.waiter)
    assert order == [5, 4, 2, 3]
