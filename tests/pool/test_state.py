"""The pool's rules, walked through at random and by hand."""

from __future__ import annotations

import itertools
from collections import deque

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
from kernelbroker_server.pool.state import (
    Action,
    Assign,
    IllegalTransition,
    Launch,
    PoolFull,
    PoolLimits,
    PoolState,
    Remove,
    SandboxState,
)

from tests.support.generated import repeatable


def make(
    min_size: int = 0, max_size: int = 3, max_waiters: int = 3, launches: int = 2
) -> PoolState:
    ids = itertools.count(1)
    return PoolState(PoolLimits(min_size, max_size, max_waiters, launches), lambda: f"s{next(ids)}")


class PoolMachine(RuleBasedStateMachine):
    """A runner at random: it does what the state asks for, late and in any order."""

    @initialize(
        min_size=st.integers(0, 4),
        max_size=st.integers(1, 5),
        max_waiters=st.integers(0, 4),
        launches=st.integers(1, 3),
    )
    def begin(self, min_size: int, max_size: int, max_waiters: int, launches: int) -> None:
        self.state = make(min_size, max_size, max_waiters, launches)
        self.names = itertools.count()
        self.waiting: deque[int] = deque()
        self.urgent: deque[int] = deque()
        self.launching: list[str] = []
        self.removing: list[str] = []
        self.leased: list[str] = []
        self.seen: set[str] = set()
        self.held = self.closed = False
        self.carry_out(self.state.resume_launches())

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Launch(sandbox_id=name):
                    assert name not in self.seen
                    assert not self.closed
                    assert not self.held
                    self.seen.add(name)
                    self.launching.append(name)
                case Remove(sandbox_id=name):
                    assert name in self.seen
                    assert name not in self.removing
                    self.removing.append(name)
                case Assign(waiter=waiter, sandbox_id=name):
                    queue = self.urgent or self.waiting
                    assert waiter == queue.popleft()  # in order of arrival, the urgent first
                    assert name not in self.leased
                    self.leased.append(name)

    def taken(self, data: st.DataObject, names: list[str]) -> str:
        name = data.draw(st.sampled_from(names))
        names.remove(name)
        return name

    @rule(urgent=st.booleans())
    def acquire(self, urgent: bool) -> None:
        waiter = next(self.names)
        queue = self.urgent if urgent else self.waiting
        queue.append(waiter)
        try:
            self.carry_out(self.state.acquire(waiter, urgent=urgent))
        except PoolFull:
            assert not urgent
            assert len(self.waiting) > self.state.limits.max_waiters
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
        self.carry_out(self.state.launched(self.taken(data, self.launching)))

    @precondition(lambda self: self.launching)
    @rule(data=st.data())
    def launch_failed(self, data: st.DataObject) -> None:
        self.state.launch_failed(self.taken(data, self.launching))
        self.held = True

    @rule()
    def resume(self) -> None:
        self.held = False
        self.carry_out(self.state.resume_launches())

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

    @rule()
    def close(self) -> None:
        self.closed = True
        self.carry_out(self.state.close())

    @invariant()
    def holds(self) -> None:
        state = self.state
        state.validate_state()
        assert state.waiters == len(self.waiting) + len(self.urgent)
        assert state.count(SandboxState.STARTING) == len(self.launching)
        assert state.count(SandboxState.LEASED) == len(self.leased)
        assert state.count(SandboxState.REMOVING) == len(self.removing)
        assert state.empty == (state.count() == 0)

    @invariant()
    def wants_for_nothing(self) -> None:
        """While somebody waits and there is room, something is being launched."""
        room = self.state.count() < self.state.limits.max_size
        if self.state.waiters and room and not (self.held or self.closed):
            assert self.launching

    def teardown(self) -> None:
        """From wherever it stands a pool that is closed comes to its end."""
        if not hasattr(self, "state"):
            return
        self.close()
        for name in list(self.leased):
            self.carry_out(self.state.release(name))
        for name in list(self.launching):
            self.carry_out(self.state.launched(name))
        for name in list(self.removing):
            self.carry_out(self.state.removed(name))
        assert self.state.empty


def test_any_course() -> None:
    """Through launches, failures, deaths, cancellations, releases and closing the invariants hold."""
    run_state_machine_as_test(
        PoolMachine, settings=settings(repeatable, max_examples=200, stateful_step_count=40)
    )


def test_fills_to_its_size() -> None:
    """A pool launches as many as it keeps free, no more at once than it may."""
    state = make(min_size=3, max_size=5, launches=2)
    assert state.resume_launches() == [Launch("s1"), Launch("s2")]
    assert state.launched("s1") == [Launch("s3")]
    assert state.launched("s2") == []
    assert state.launched("s3") == []
    assert state.count(SandboxState.IDLE) == 3


def test_lease_of_an_idle_sandbox() -> None:
    """An idle sandbox is assigned at once, and its place is filled again."""
    state = make(min_size=1)
    state.resume_launches()
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
    state.resume_launches()
    state.launch_failed("s1")
    assert state.acquire(1) == []
    assert state.launched("s2") == [Assign(1, "s2")]
    assert state.resume_launches() == [Launch("s3"), Launch("s4")]


def test_death() -> None:
    """An idle one that dies is removed and replaced; a leased one is its session's to release."""
    state = make(min_size=1, max_size=3)
    state.resume_launches()
    state.launched("s1")
    assert state.died("s1") == [Remove("s1"), Launch("s2")]
    assert state.died("s1") == []
    state.launched("s2")
    state.acquire(1)
    assert state.died("s2") == []
    assert Remove("s2") in state.release("s2")
    assert state.died("never heard of") == []


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
    state.resume_launches()
    with pytest.raises(
        IllegalTransition, match=r"s1 cannot become removing; it was \['starting'\]"
    ):
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
