"""The pool's rules, walked through at random and by hand."""

from __future__ import annotations

import itertools
from collections import deque
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
    """A runner at random: it does what the state asks for, late, in any order, or for long not at all."""

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
                    own = self.line_of(self.tenants[waiter])
                    assert waiter == own[-1]
                    assert len(own) == max(len(self.line_of(name)) for name in "abc")
                    newcomer = self.tenants[self.waiting[-1]]
                    assert len(self.line_of(newcomer)) < len(own)  # itself included
                    assert len(self.waiting) > self.state.limits.max_waiters
                    self.waiting.remove(waiter)

    def line_of(self, tenant: str) -> list[int]:
        return [waiter for waiter in self.waiting if self.tenants[waiter] == tenant]

    def take_turn(self, waiter: int) -> None:
        """Of its tenant it has waited longest, and that one was not served twice before another."""
        tenant = self.tenants[waiter]
        assert waiter == self.line_of(tenant)[0]
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
        if not urgent and not self.line_of(tenant):
            self.served[tenant] = set()
        queue = self.urgent if urgent else self.waiting
        queue.append(waiter)
        try:
            self.carry_out(self.state.acquire(waiter, tenant=tenant, urgent=urgent))
        except PoolFull:
            assert not urgent
            assert not self.idle
            assert len(self.waiting) > self.state.limits.max_waiters
            own = len(self.line_of(tenant))
            assert all(len(self.line_of(name)) <= own for name in "abc")
            queue.remove(waiter)

    @precondition(lambda self: self.waiting or self.urgent)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from([*self.waiting, *self.urgent]))
        self.state.cancel(waiter)
        (self.waiting if waiter in self.waiting else self.urgent).remove(waiter)

    @rule(waiter=st.integers(10_000, 10_001))
    def cancel_somebody_unknown(self, waiter: int) -> None:
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
        """The answer for one that died meanwhile, or whose pool was closed."""
        name = data.draw(st.sampled_from(sorted(self.seen - set(self.checking))))
        assert self.state.checked(name, healthy=healthy) == []

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 30.0, LONG_S]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        before = set(self.removing)
        self.carry_out(self.state.tick(self.now))
        # One at a time for its age, and one for want of work.
        assert len(set(self.removing) - before) <= 2

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
    def wants_for_nothing(self) -> None:
        """While somebody waits and there is room, something is being launched, or checked."""
        room = self.state.count() < self.state.limits.max_size
        if self.state.waiters and room and not (self.state.back_off or self.closed):
            assert self.launching or self.checking

    def all_goes_well(self) -> None:
        """Carry out whatever is to be done until nothing is."""
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
        """Left in peace, everybody is served, and the pool comes to be of its smallest size."""
        limits = self.state.limits
        for _ in range(2 * self.state.waiters + 2):
            for name in list(self.leased):
                self.leased.remove(name)
                self.carry_out(self.state.release(name))
            self.now += LONG_S
            self.carry_out(self.state.tick(self.now))
            self.all_goes_well()
        assert not self.waiting
        assert not self.urgent
        if self.draining:
            assert self.state.spare == 0
            return
        for _ in range(limits.max_size + 2):
            self.now += 10.0
            self.carry_out(self.state.tick(self.now))
            self.all_goes_well()
        assert len(self.idle) == min(limits.min_size, limits.max_size)
        assert self.state.spare == limits.min_size

    def teardown(self) -> None:
        """From wherever it stands a pool comes to peace, and one that is closed to its end."""
        if not hasattr(self, "state"):
            return
        if not self.closed:
            self.settles()
        self.closed = True
        self.carry_out(self.state.close())
        for name in list(self.leased):
            self.leased.remove(name)
            self.carry_out(self.state.release(name))
        self.all_goes_well()
        assert self.state.empty


def test_any_course() -> None:
    """Whatever comes to pass, the invariants hold, and afterwards the pool finds back to peace."""
    run_state_machine_as_test(
        PoolMachine, settings=settings(repeatable, max_examples=300, stateful_step_count=50)
    )


def test_fills_to_its_size() -> None:
    """A pool launches as many as it keeps free, no more at once than it may."""
    state = make(min_size=3, max_size=5, launches=2)
    assert state.tick(0) == [Launch("s1"), Launch("s2")]
    assert state.launched("s1") == [Launch("s3")]
    assert state.launched("s2") == []
    assert state.launched("s3") == []
    assert state.count(SandboxState.IDLE) == 3


def test_lease_of_an_idle_sandbox() -> None:
    """An idle sandbox is assigned at once, and its place is filled again."""
    state = make(min_size=1)
    state.tick(0)
    state.launched("s1")
    assert state.acquire(1) == [Assign(1, "s1"), Launch("s2")]


def test_order_of_arrival() -> None:
    """Waiters are served in order, those who lost their sandbox first, and who left is passed over."""
    state = make(max_size=4, max_waiters=10, launches=4)
    for waiter in (1, 2, 3):
        state.acquire(waiter)
    state.acquire(4, urgent=True)
    state.cancel(1)
    assert Assign(4, "s1") in state.launched("s1")
    assert Assign(2, "s2") in state.launched("s2")
    assert Assign(3, "s3") in state.launched("s3")


def test_bounds() -> None:
    """As many may wait as may wait; the urgent always may; nothing changes for who may not."""
    state = make(max_size=1, max_waiters=2)
    state.acquire(1)
    state.acquire(2)
    with pytest.raises(PoolFull):
        state.acquire(3)
    assert state.waiters == 2
    assert state.acquire(4, urgent=True) == []
    assert Assign(4, "s1") in state.launched("s1")


def test_tenants_take_turns() -> None:
    """One that waits often holds up nobody: each tenant gets one after the other."""
    state = make(max_size=5, max_waiters=10, launches=5)
    for waiter in (1, 2, 3):
        state.acquire(waiter, tenant="many")
    state.acquire(4, tenant="one")
    state.acquire(5, tenant="other")
    served = [a.waiter for n in range(1, 6) for a in state.launched(f"s{n}") if type(a) is Assign]
    assert served == [1, 4, 5, 2, 3]


def test_shares_of_a_full_line() -> None:
    """Who has most of a full line gives up its latest places, until another one has as many."""
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


def test_sandboxes_being_removed_count() -> None:
    """A place is free only when the sandbox that had it is gone."""
    state = make(max_size=1)
    state.acquire(1)
    state.launched("s1")
    state.acquire(2)
    assert state.release("s1") == [Remove("s1")]
    assert state.removed("s1") == [Launch("s2")]


def test_failed_launch_holds_back() -> None:
    """After a failure nothing is launched before the pause is over, but what is warm is leased."""
    state = make(min_size=2, max_size=4)
    state.tick(0)
    assert state.launch_failed("s1") == 0.5
    assert state.acquire(1) == []
    assert state.launched("s2") == [Assign(1, "s2")]
    assert state.tick(0.4) == []
    assert state.tick(0.5) == [Launch("s3"), Launch("s4")]


def test_pauses_grow() -> None:
    """Each failure in a row makes the next pause longer, up to the longest; success resets it."""
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


def test_death() -> None:
    """An idle one that dies is removed and replaced; a leased one is its session's to release."""
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


def test_drain() -> None:
    """A pool that drains launches for those who wait, and for nobody else."""
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


def test_close() -> None:
    """A closed pool removes what is idle, what comes warm late, and what is released."""
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


def test_illegal_transitions() -> None:
    """What cannot be raises, with the sandbox's history."""
    state = make(min_size=1)
    state.tick(0)
    with pytest.raises(IllegalTransition, match=r"s1 is not leased; it was \['starting'\]"):
        state.release("s1")
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
    """While the load is at the threshold one more is kept free each second, up to what there may be."""
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


def test_shrinks_when_it_is_quiet() -> None:
    """While the load is at the lower threshold one less is kept free each ten seconds."""
    state = filled(1, max_size=4, scale_up_threshold=0.5)
    state._spare.size = 3
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


def test_failing_launches_are_no_load() -> None:
    """While launches fail, the pool does not come to want more and more of them."""
    state = make(min_size=0, max_size=9, scale_up_threshold=0.5)
    state.acquire(1)
    for now in range(0, 100, 5):
        state.tick(now)
        for name in state._sandboxes.names(SandboxState.STARTING):
            state.launch_failed(name)
        state.validate_state()
    assert state.spare == 0


# Age.


def test_old_one_goes_when_its_successor_is_warm() -> None:
    """Where there is room, the new one is warm before the old one goes."""
    state = filled(1, max_size=2, container_ttl=TTL_S)
    assert state.tick(TTL_S - 1) == []
    assert state.tick(TTL_S) == [Launch("s2")]
    assert state.tick(TTL_S + 1) == []
    assert state.launched("s2") == [Remove("s1")]
    assert state.removed("s1") == []
    assert state.tick(TTL_S + 2) == []


def test_old_ones_go_one_by_one() -> None:
    """Of many that are too old, one at a time is replaced."""
    state = filled(3, max_size=9, container_ttl=TTL_S)
    assert state.tick(TTL_S) == [Launch("s4")]
    assert state.launched("s4") == [Remove("s1"), Launch("s5")]
    assert state.launched("s5") == [Remove("s2"), Launch("s6")]
    assert state.launched("s6") == [Remove("s3")]
    assert state.count(SandboxState.IDLE) == 3


def test_old_one_goes_first_where_there_is_no_room() -> None:
    """Where there is no room beside it, the old one goes, and the new one comes after."""
    state = filled(1, max_size=1, container_ttl=TTL_S)
    assert state.tick(TTL_S) == [Remove("s1")]
    assert state.removed("s1") == [Launch("s2")]


def test_old_ones_stay_while_launches_fail() -> None:
    """An old sandbox is better than none."""
    state = filled(1, max_size=2, container_ttl=TTL_S)
    state.tick(TTL_S)
    state.launch_failed("s2")
    assert state.tick(TTL_S + 0.1) == []
    assert state.acquire(1) == [Assign(1, "s1")]


# Health.


def test_checks_take_turns() -> None:
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


def test_unhealthy_one_is_replaced() -> None:
    """One that is not well is removed; nobody gets it meanwhile."""
    state = filled(1, max_size=3, max_waiters=0, health_check_interval=CHECK_S)
    assert state.tick(CHECK_S) == [Check("s1")]
    assert state.acquire(1) == [Launch("s2")]  # waits, though nobody may: it is a matter of moments
    with pytest.raises(PoolFull):
        state.acquire(2)
    assert state.checked("s1", healthy=False) == [Remove("s1")]
    assert state.launched("s2") == [Assign(1, "s2"), Launch("s3")]


def test_who_waits_for_a_check() -> None:
    """A sandbox that is well goes at once to who waited for its check."""
    state = filled(1, max_size=1, health_check_interval=CHECK_S)
    state.tick(CHECK_S)
    assert state.acquire(1) == []
    assert state.checked("s1", healthy=True) == [Assign(1, "s1")]


@pytest.mark.parametrize("end", ["died", "closed"])
def test_end_during_a_check(end: str) -> None:
    """The answer for a sandbox that is being removed meanwhile changes nothing."""
    state = filled(1, max_size=1, health_check_interval=CHECK_S)
    state.tick(CHECK_S)
    assert (state.died("s1") if end == "died" else state.close()) == [Remove("s1")]
    assert state.checked("s1", healthy=True) == []
    assert state.count(SandboxState.REMOVING) == 1
