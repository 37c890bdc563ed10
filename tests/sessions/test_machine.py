"""The rules of a session: a property test over all commands and reports, and single decisions."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kernelbroker.protocol.errors import Conflict, SessionGone, TooManyRequests, Unavailable
from kernelbroker_server.sessions import borrowers, effects
from kernelbroker_server.sessions.effects import Effect, Failure
from kernelbroker_server.sessions.machine import SessionMachine
from kernelbroker_server.sessions.states import (
    EXECUTION_TRANSITIONS,
    ExecutionState,
    IllegalTransition,
    SessionState,
    StateTrack,
)

from tests.support.generated import repeatable

UNAVAILABLE = Unavailable("there is no sandbox")
FAILURE = Failure("quota_exceeded", "QuotaExceeded", "too much")


class SessionRules(RuleBasedStateMachine):
    """Drives a machine as a runner does, and keeps account of what that still has to report."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = SessionMachine("s")
        self.acquiring = False
        self.suspending = False
        self.saving = False
        self.awaiting_turn: set[str] = set()
        self.admitted: set[str] = set()
        self.moving: set[str] = set()
        self.running: str | None = None
        self.told_lost = False
        self.releasing = False
        self.ended: set[str] = set()
        self.submitted: list[str] = []
        self.borrowers: dict[int, str] = {}
        self.restarts = 0
        self.closed_events = 0
        self.detached = False
        self.lost_unreported = False
        self.carry_out(self.machine.open())

    def carry_out(self, decided: list[Effect]) -> None:
        for effect in decided:
            match effect:
                case effects.Suspend() | effects.Move():
                    assert not self.acquiring and not self.suspending
                    assert self.running is None and not self.borrowers and not self.saving
                    if isinstance(effect, effects.Move):
                        assert effect.execution_id in self.admitted & self.moving
                        self.moving.discard(effect.execution_id)
                    self.suspending = True
                case effects.Acquire() | effects.Replace() | effects.Wake():
                    assert not self.acquiring and not self.suspending
                    if isinstance(effect, effects.Wake):
                        assert self.machine.state is SessionState.WAKING
                    assert self.running is None
                    self.acquiring = True
                case effects.CancelAcquisition():
                    assert self.acquiring
                case effects.AwaitTurn(execution_id=name):
                    assert name not in self.awaiting_turn | self.admitted
                    self.awaiting_turn.add(name)
                case effects.Run(execution_id=name, state_lost=state_lost):
                    assert self.running is None
                    assert not self.acquiring and not self.saving
                    assert name in self.admitted - self.moving
                    assert name == next(n for n in self.submitted if n not in self.ended)
                    self.running = name
                    self.told_lost = state_lost
                case effects.Interrupt(execution_id=name) | effects.Abort(execution_id=name):
                    assert name == self.running
                case effects.Reject(execution_id=name, awaited_turn=awaited):
                    assert name not in self.ended
                    assert awaited == (name in self.awaiting_turn | self.admitted)
                    assert name != self.running
                    self.awaiting_turn.discard(name)
                    self.admitted.discard(name)
                    self.ended.add(name)
                case effects.GrantBorrower(borrower=number):
                    assert not self.saving
                    assert self.borrowers[number] == "waiting"
                    self.borrowers[number] = "holding"
                case effects.RefuseBorrower(borrower=number):
                    assert self.borrowers.pop(number) == "waiting"
                case effects.AnswerRestarts():
                    assert self.restarts
                    self.restarts = 0
                case effects.Release():
                    assert not self.releasing
                    assert not self.acquiring
                    assert not self.suspending and not self.saving
                    assert self.running is None
                    self.releasing = True
                case effects.Detach():
                    assert not self.acquiring
                    self.detached = True
                case effects.Left():
                    assert not self.acquiring
                    if not self.detached:
                        assert self.running is None
                        assert not self.borrowers and self.ended == set(self.submitted)
                case effects.SessionEnded():
                    self.closed_events += 1
                    if self.detached:
                        self.running = None
                        self.ended |= set(self.submitted)
                        self.awaiting_turn, self.admitted = set(), set()

    @property
    def is_open(self) -> bool:
        machine = self.machine
        return machine.closed_reason is None and machine.state is not SessionState.LEAVING

    # Commands.

    @precondition(lambda self: self.is_open and len(self.submitted) < 40)
    @rule(silent=st.booleans())
    def submit(self, silent: bool) -> None:
        name = f"e{len(self.submitted)}"
        self.submitted.append(name)
        self.carry_out(self.machine.submit(name, silent=silent))

    @precondition(lambda self: self.is_open)
    @rule(which=st.integers(-1, 5))
    def interrupt(self, which: int) -> None:
        name = None if which < 0 else f"e{len(self.submitted) - which}"
        self.carry_out(self.machine.interrupt(name))

    @precondition(lambda self: self.running is not None)
    @rule()
    def abort(self) -> None:
        assert self.running is not None
        self.carry_out(self.machine.abort(self.running, FAILURE))

    @precondition(lambda self: self.is_open)
    @rule()
    def restart(self) -> None:
        self.restarts += 1
        self.carry_out(self.machine.restart())

    @rule()
    def condemn(self) -> None:
        self.carry_out(self.machine.condemn("quota_exceeded"))

    @precondition(lambda self: self.is_open)
    @rule(alive=st.booleans())
    def borrow(self, alive: bool) -> None:
        number = max(self.borrowers, default=0) + 1
        if len(self.borrowers) >= borrowers.MAX_BORROWERS:
            with pytest.raises(TooManyRequests):
                self.machine.borrow(number, alive=alive)
            return
        if not alive and self.machine.state is SessionState.READY:
            self.carry_out(self.machine.sandbox_died())  # as the runner does
        self.borrowers[number] = "waiting"
        self.carry_out(self.machine.borrow(number, alive=alive))

    @precondition(lambda self: self.borrowers)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.borrowers)))
        del self.borrowers[number]
        self.carry_out(self.machine.give_back(number))

    @precondition(lambda self: len(self.submitted) > 5)
    @rule()
    def close_when_idle(self) -> None:
        self.carry_out(self.machine.close_when_idle("it is over"))

    @precondition(lambda self: len(self.submitted) > 5)
    @rule()
    def leave_when_idle(self) -> None:
        self.carry_out(self.machine.leave_when_idle("it is over"))

    @precondition(lambda self: len(self.submitted) > 5)
    @rule()
    def leave(self) -> None:
        self.carry_out(self.machine.leave())

    @precondition(lambda self: len(self.submitted) > 5)
    @rule()
    def close(self) -> None:
        self.carry_out(self.machine.close("its client closed it"))
        assert not self.is_open

    @precondition(lambda self: self.is_open)
    @rule()
    def sleep(self) -> None:
        self.carry_out(self.machine.sleep())

    @precondition(lambda self: not self.saving)
    @rule()
    def save(self) -> None:
        machine = self.machine
        if not self.is_open or machine.state is not SessionState.READY or not machine.idle:
            with pytest.raises((Conflict, SessionGone, Unavailable)):
                machine.save()
            return
        machine.save()
        self.saving = True

    # Reports.

    @precondition(lambda self: self.saving)
    @rule(sleeps=st.booleans())
    def saved(self, sleeps: bool) -> None:
        self.saving = False
        self.carry_out(self.machine.saved(sleeps=sleeps and self.machine.can_sleep))

    @precondition(lambda self: self.suspending)
    @rule()
    def suspended(self) -> None:
        self.suspending = False
        self.carry_out(self.machine.suspended())

    @precondition(lambda self: self.acquiring)
    @rule(ready=st.booleans(), incomplete=st.booleans())
    def acquired(self, ready: bool, incomplete: bool = False) -> None:
        self.acquiring = False
        if ready:
            self.carry_out(self.machine.sandbox_ready(incomplete=incomplete))
        else:
            self.carry_out(self.machine.sandbox_failed(UNAVAILABLE))

    @rule()
    def died(self) -> None:
        self.carry_out(self.machine.sandbox_died())

    @precondition(lambda self: self.awaiting_turn and not self.detached)
    @rule(moves=st.booleans())
    def turn_granted(self, moves: bool) -> None:
        (name,) = self.awaiting_turn
        self.awaiting_turn.remove(name)
        self.admitted.add(name)
        if moves:
            self.moving.add(name)
        self.carry_out(self.machine.turn_granted(name, moves=moves))

    @precondition(lambda self: self.running is not None and not self.detached)
    @rule(lost=st.sampled_from([None, "out_of_memory"]))
    def ended_running(self, lost: str | None) -> None:
        assert self.running is not None
        name, self.running = self.running, None
        self.admitted.remove(name)
        self.ended.add(name)
        self.carry_out(self.machine.execution_ended(name, lost=lost))

    @precondition(lambda self: self.releasing)
    @rule()
    def released(self) -> None:
        if self.machine.state is SessionState.RELEASING:
            self.carry_out(self.machine.released())

    @invariant()
    def valid(self) -> None:
        self.machine.validate_state()
        assert self.machine.running == self.running
        assert len(self.awaiting_turn | self.admitted) <= 1
        assert self.closed_events <= 1
        for name in self.submitted:
            done = self.machine.execution_state(name) is ExecutionState.DONE
            assert done == (name in self.ended)

    def teardown(self) -> None:
        """After any commands, a closed session has ended everything and released everything."""
        self.carry_out(self.machine.close("the test is over"))
        if self.running is not None:
            self.ended_running(lost="closed")
        if self.saving:
            self.saved(sleeps=True)
        if self.suspending:
            self.suspended()
        if self.acquiring:
            self.acquired(ready=True)
        assert self.releasing
        self.released()
        assert self.machine.state is SessionState.CLOSED
        assert self.ended == set(self.submitted)
        assert not self.restarts
        assert "waiting" not in self.borrowers.values()
        self.machine.validate_state()


SessionRules.TestCase.settings = settings(repeatable, max_examples=150, stateful_step_count=60)
TestSessionRules = SessionRules.TestCase


def ready() -> SessionMachine:
    """A session that is open, with a sandbox."""
    session = SessionMachine("s")
    session.open()
    session.sandbox_ready()
    return session


def test_a_condemned_sandbox_runs_no_cell() -> None:
    """A cell that waits for its turn while its sandbox is condemned runs in the next sandbox."""
    session = ready()
    session.submit("e")
    assert session.condemn("quota_exceeded") == [effects.Replace("quota_exceeded")]
    assert session.turn_granted("e") == []
    decided = session.sandbox_ready()
    assert effects.Run("e", state_lost=True) in decided


def test_a_restart_is_told_by_the_next_result() -> None:
    """After a requested restart, the first result reports the lost variables, and no other one."""
    session = ready()
    session.restart()
    session.sandbox_ready()
    for name, told in (("first", True), ("second", False)):
        session.submit(name)
        assert session.turn_granted(name) == [effects.Run(name, state_lost=told)]
        session.execution_ended(name, lost=None)


def test_silent_executions_do_not_report_lost_state() -> None:
    """Lost variables are reported by the next result that the user sees, and once."""
    session = ready()
    session.sandbox_died()
    told = []
    for name, silent in (("hidden", True), ("first", False), ("second", False)):
        session.submit(name, silent=silent)
        decided = session.turn_granted(name)
        if session.state is SessionState.REPLACING:
            decided = session.sandbox_ready()
        (run,) = [effect for effect in decided if isinstance(effect, effects.Run)]
        told.append(run.state_lost)
        session.execution_ended(name, lost=None)
    assert told == [True, True, False]


def test_closed_sessions_take_nothing() -> None:
    """Every command of a user is refused with the reason once a session is closed."""
    session = ready()
    session.close("it was idle")
    for command in (
        lambda: session.submit("e"),
        session.interrupt,
        session.restart,
        lambda: session.borrow(1, alive=True),
    ):
        with pytest.raises(SessionGone, match="it was idle"):
            command()


def test_a_session_is_left_with_a_living_sandbox_only() -> None:
    """One that is left refuses work for the moment, and can still be closed; one without sandbox closes."""
    session = ready()
    session.submit("e")
    assert session.leave_when_idle("a restart") == []
    session.turn_granted("e")
    assert session.execution_ended("e", lost=None) == [effects.Left()]
    assert session.interrupt() == []
    for command in (lambda: session.submit("f"), session.restart, session.expect_open):
        with pytest.raises(Unavailable, match="try again"):
            command()
    assert session.close("it ends") == [effects.SessionEnded("it ends"), effects.Release()]
    busy = ready()
    for name in "ef":
        busy.submit(name)
    busy.turn_granted("e")
    assert busy.leave() == [], "it was not asked to"
    busy.leave_when_idle("a restart")
    assert busy.leave() == [effects.Detach(), effects.Left()]
    assert busy.execution_state("f") is ExecutionState.QUEUED
    closed = [effects.SessionEnded("it ends"), effects.Release()]
    assert busy.close("it ends") == closed, "the next broker gives its executions their results"
    busy.validate_state()
    without = ready()
    without.sandbox_died()
    assert effects.SessionEnded("a restart") in without.leave_when_idle("a restart")


def test_an_illegal_transition_carries_its_history() -> None:
    """The error of an illegal transition has the subject, the states and the history as attributes."""
    track = StateTrack("execution e", ExecutionState.QUEUED, EXECUTION_TRANSITIONS)
    track.move(ExecutionState.WAITING)
    with pytest.raises(IllegalTransition) as caught:
        track.move(ExecutionState.RUNNING)
    assert caught.value.subject == "execution e"
    assert caught.value.state is ExecutionState.WAITING
    assert caught.value.asked is ExecutionState.RUNNING
    assert caught.value.history == ("queued", "waiting")
    assert track.current is ExecutionState.WAITING


def asleep() -> SessionMachine:
    session = ready()
    assert session.sleep() == [effects.Suspend()]
    assert session.suspended() == []
    return session


def test_a_sleeping_session_wakes_for_what_needs_a_sandbox() -> None:
    """A cell that has its turn, or a borrower, wakes it; an execution alone asks for its turn first."""
    session = asleep()
    assert session.submit("a") == [effects.AwaitTurn("a")]
    assert session.state is SessionState.ASLEEP
    assert session.turn_granted("a") == [effects.Wake()]
    assert session.sandbox_ready() == [effects.Run("a", state_lost=False)]
    session = asleep()
    assert session.borrow(1, alive=False) == [effects.Wake()]
    assert session.sandbox_ready() == [effects.GrantBorrower(1)]


def test_only_an_idle_session_falls_asleep() -> None:
    """A session that has work, or whose sandbox has died, stays as it is."""
    session = ready()
    session.borrow(1, alive=True)
    assert session.sleep() == []
    session.give_back(1)
    session.sandbox_died()
    assert session.sleep() == []


def test_work_that_comes_while_it_falls_asleep_wakes_it_again() -> None:
    """Nothing is refused, and no state is lost."""
    session = ready()
    session.sleep()
    assert session.borrow(1, alive=True) == []
    assert session.suspended() == [effects.Wake()]


def test_a_session_that_cannot_wake_stays_asleep() -> None:
    """Its cells are refused, and its variables are not lost: a later cell tries again."""
    session = asleep()
    session.submit("a")
    session.turn_granted("a")
    (rejected,) = session.sandbox_failed(UNAVAILABLE)
    assert isinstance(rejected, effects.Reject)
    assert session.state is SessionState.ASLEEP
    session.submit("b")
    session.turn_granted("b")
    assert session.sandbox_ready() == [effects.Run("b", state_lost=False)]


def test_variables_that_are_not_restored_are_reported() -> None:
    """The first result after waking says that not all variables could be loaded."""
    session = asleep()
    session.submit("a")
    session.turn_granted("a")
    assert session.sandbox_ready(incomplete=True) == [effects.Run("a", state_lost=True)]


def test_a_restart_of_a_sleeping_session_gives_a_fresh_kernel() -> None:
    """Asleep, falling asleep or waking: the saved variables are not loaded in the end."""
    session = asleep()
    assert session.restart() == [effects.Replace("restart")]
    session = ready()
    session.sleep()
    assert session.restart() == []
    assert session.suspended() == [effects.Replace("restart")]
    session = asleep()
    session.borrow(1, alive=False)
    assert session.restart() == []
    assert session.sandbox_ready() == [effects.Replace("restart")]
    assert session.sandbox_ready() == [effects.AnswerRestarts(None), effects.GrantBorrower(1)]


def test_nothing_uses_a_sandbox_whose_processes_are_saved() -> None:
    """Cells and borrowers wait; a restart replaces it afterwards; a session that is used is not saved."""
    session = ready()
    session.save()
    assert session.submit("a") == []
    assert session.borrow(1, alive=True) == []
    assert not session.can_sleep
    assert session.saved() == [effects.GrantBorrower(1), effects.AwaitTurn("a")]
    with pytest.raises(Conflict, match="in use"):
        session.save()
    session = ready()
    session.save()
    session.restart()
    assert session.saved() == [effects.Replace("restart")]
    session = ready()
    session.save()
    session.close("it was closed")
    assert session.saved() == [effects.Release()]


def test_a_session_sleeps_with_its_saved_processes() -> None:
    """Its sandbox is given back while the processes stand still."""
    session = ready()
    session.save()
    assert session.can_sleep
    assert session.saved(sleeps=True) == [effects.Suspend()]
    assert session.suspended() == []
    assert session.state is SessionState.ASLEEP
