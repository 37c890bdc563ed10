"""The rules of one session: when executions run, and when its sandbox is replaced.

No I/O, clock or tasks. Commands come from users of the session, reports from the runner (`runner.py`). Each
method decides at once and returns effects. `states.py` defines the states and their transitions.
"""

from __future__ import annotations

from kernelbroker.protocol.errors import Conflict, RequestError

from .effects import (
    Abort,
    Acquire,
    AwaitTurn,
    CancelAcquisition,
    Detach,
    Effect,
    Failure,
    Interrupt,
    Left,
    Opened,
    OpeningFailed,
    SessionEnded,
    Suspend,
    Wake,
)
from .machine_state import AT_REST
from .machine_steps import MachineSteps
from .states import ExecutionState, SessionState


class SessionMachine(MachineSteps):
    """The state machine of one session. `validate_state` holds after every call."""

    # Commands.

    def open(self) -> list[Effect]:
        """Open the session. Called once."""
        return [Acquire()]

    def sleep(self) -> list[Effect]:
        """Give back the sandbox: the variables are saved. Does nothing if something runs or waits."""
        if self.state is not SessionState.READY or not self.idle or self._close_when_idle:
            return []
        self._track.move(SessionState.SUSPENDING)
        return [Suspend()]

    def save(self) -> None:
        """Begin to save the processes of the sandbox. `saved` follows.

        Raises:
            SessionGone
            Conflict: something runs, waits or uses the gateway.
        """
        self.expect_open()
        if self.state is not SessionState.READY or not self.idle:
            raise Conflict(
                "the session is in use, so its processes cannot be saved: wait for its cells and "
                'transfers, or use mode="values"'
            )
        self._track.move(SessionState.SAVING)

    def saved(self, *, sleeps: bool = False) -> list[Effect]:
        """Report that the processes are saved, or could not be.

        Args:
            sleeps: they stand still and do not go on. Only if the session `can_sleep`.
        """
        if self.state is SessionState.CLOSING:
            return [self._release()]
        if self._restarts:
            return [self._replace("restart")]
        if sleeps:
            self._track.move(SessionState.SUSPENDING)
            return [Suspend()]
        self._track.move(SessionState.READY)
        return self._advance()

    def submit(self, execution_id: str, *, silent: bool = False) -> list[Effect]:
        """Queue an execution.

        Args:
            silent: its result is not shown to the session's user.

        Raises:
            SessionGone
        """
        self.expect_open()
        self._executions.add(execution_id, silent=silent)
        return self._advance()

    def interrupt(self, execution_id: str | None = None) -> list[Effect]:
        """Interrupt the running execution, or the one with this id.

        A waiting execution is taken out of the queue. One that has ended is left alone. Raises SessionGone.
        """
        if self.state is SessionState.LEAVING:
            return []
        self.expect_open()
        if self.running is not None and execution_id in (None, self.running):
            return [Interrupt(self.running)]
        if execution_id is None:
            return []
        failure = Failure("interrupted", "Interrupted", "interrupted before it ran")
        return self.reject(execution_id, failure)

    def reject(self, execution_id: str, failure: Failure) -> list[Effect]:
        """End a waiting execution. Does nothing if it runs or has ended."""
        if execution_id not in self._executions:
            return []
        return [self._executions.reject(execution_id, failure), *self._advance()]

    def abort(self, execution_id: str, failure: Failure) -> list[Effect]:
        """End the running execution and its sandbox. Does nothing if the execution does not run."""
        if self.state is not SessionState.RUNNING or self.running != execution_id:
            return []
        self._track.move(SessionState.ABORTING)
        return [Abort(execution_id, failure)]

    def restart(self) -> list[Effect]:
        """Replace the kernel: variables are lost, files are kept. `AnswerRestarts` follows.

        The next result reports it, because another client may have asked for the restart.
        A restart during a replacement is answered when that replacement ends. Raises SessionGone.
        """
        self.expect_open()
        self._restarts += 1
        match self.state:
            case SessionState.READY | SessionState.EMPTY | SessionState.ASLEEP:
                return [self._replace("restart")]
            case SessionState.RUNNING:
                assert self.running is not None
                restarted = Failure("interrupted", "Restarted", "the kernel was restarted")
                return self.abort(self.running, restarted)
        return []

    def condemn(self, cause: str) -> list[Effect]:
        """Replace the sandbox if no execution runs. Does nothing otherwise."""
        if self.state is not SessionState.READY:
            return []
        self._unreported_loss = cause
        return [self._replace(cause)]

    def borrow(self, borrower: int, *, alive: bool) -> list[Effect]:
        """Ask for the sandbox's gateway. `GrantBorrower` or `RefuseBorrower` follows now or later.

        Args:
            borrower: a number that no other borrower has.
            alive: whether the present sandbox lives.

        Raises:
            SessionGone, TooManyRequests
        """
        self.expect_open()
        self._borrowers.add(borrower)
        if alive and self.state is SessionState.RUNNING:
            return self._borrowers.grant_waiting()
        return self._advance()

    def give_back(self, borrower: int) -> list[Effect]:
        """Remove a borrower that has ended or no longer waits. A second call does nothing."""
        self._borrowers.give_back(borrower)
        return self._advance()

    def close_when_idle(self, reason: str) -> list[Effect]:
        """Close the session as soon as nothing runs, waits or uses the gateway."""
        self._close_when_idle = reason
        return self._advance()

    def leave_when_idle(self, reason: str) -> list[Effect]:
        """As `close_when_idle`, but leave the session and its sandbox to the next broker if both live."""
        self._leaves = True
        return self.close_when_idle(reason)

    def leave(self) -> list[Effect]:
        """After `leave_when_idle`: leave it now, with what runs and waits.

        Does nothing if it cannot be left.
        """
        if not self._leaves or self.state not in (SessionState.READY, SessionState.RUNNING):
            return []
        self._track.move(SessionState.LEAVING)
        return [Detach(), Left()]

    def close(self, reason: str) -> list[Effect]:
        """End the session: every execution gets its result. Does nothing if the session is closed.

        Executions that were left get theirs from the next broker.
        """
        if self.closed_reason is not None:
            return []
        if self.state is SessionState.LEAVING:
            self._executions.forget()
        was_open = self.state is not SessionState.OPENING
        effects = [*([SessionEnded(reason)] if was_open else []), *self._end(reason)]
        match self.state:
            case (
                SessionState.READY | SessionState.EMPTY | SessionState.ASLEEP | SessionState.LEAVING
            ):
                effects.append(self._release())
            case SessionState.RUNNING:
                assert self.running is not None
                self._track.move(SessionState.CLOSING)
                closed = Failure("interrupted", "SessionClosed", reason)
                effects.append(Abort(self.running, closed))
            case (
                SessionState.ABORTING
                | SessionState.SAVING
                | SessionState.SUSPENDING
                | SessionState.MOVING
            ):
                self._track.move(SessionState.CLOSING)
            case SessionState.OPENING | SessionState.REPLACING | SessionState.WAKING:
                self._track.move(SessionState.CLOSING)
                effects.append(CancelAcquisition())
        return effects

    # Reports.

    def sandbox_ready(self, *, incomplete: bool = False) -> list[Effect]:
        """Report a fresh, living sandbox with the session's files.

        Args:
            incomplete: not all saved variables could be loaded. The next result says so.
        """
        if self.state is SessionState.CLOSING:
            return [self._release()]
        if self.state is SessionState.WAKING:
            if self._restarts:
                return [self._replace("restart")]
            if incomplete:
                self._unreported_loss = "not_restored"
        first = self.state is SessionState.OPENING
        self._track.move(SessionState.READY)
        if self._restarts:
            self._unreported_loss = "restarted"
        effects: list[Effect] = [Opened()] if first else []
        return [*effects, *self._answer(None), *self._advance()]

    def sandbox_failed(self, error: RequestError) -> list[Effect]:
        """Report that there was no sandbox. All waiters are refused; the next use tries again."""
        match self.state:
            case SessionState.CLOSING:
                return [self._release()]
            case SessionState.OPENING:
                return [OpeningFailed(error), *self._end(error.message), self._release()]
        if self.state is SessionState.WAKING:
            self._track.move(SessionState.ASLEEP)
        else:
            self._track.move(SessionState.EMPTY)
            self._unreported_loss = self._unreported_loss or "sandbox_lost"
        effects = self._answer(error)
        if (first := self._executions.first(ExecutionState.ADMITTED)) is not None:
            failure = Failure("rejected", type(error).__name__, error.message)
            effects.append(self._executions.reject(first, failure))
        return [*effects, *self._advance()]

    def suspended(self) -> list[Effect]:
        """Report that the sandbox of a session that falls asleep, or moves, was given back."""
        if self.state is SessionState.CLOSING:
            return [self._release()]
        self._track.move(SessionState.ASLEEP)
        return [self._replace("restart")] if self._restarts else self._advance()

    def sandbox_died(self) -> list[Effect]:
        """Report that the sandbox has died. If an execution runs, its end reports the same."""
        if self.state is not SessionState.READY:
            return []
        self._unreported_loss = self._unreported_loss or "sandbox_ended"
        self._track.move(SessionState.EMPTY)
        return self._advance()

    def turn_granted(self, execution_id: str, *, moves: bool = False) -> list[Effect]:
        """Report that the execution has its turn among all sessions.

        Args:
            moves: the session moves to another pool before it.
        """
        self._executions.admit(execution_id)
        self._moves_for = execution_id if moves else None
        return self._advance()

    def execution_ended(self, execution_id: str, *, lost: str | None) -> list[Effect]:
        """Report that the execution has its result.

        Args:
            lost: why its sandbox cannot be used again; None if it can.
        """
        assert self.running == execution_id, (self.running, execution_id)
        silent = self._executions.end_running()
        if self.state is SessionState.CLOSING:
            return [self._release()]
        if lost is None and self.state is SessionState.RUNNING:
            self._track.move(SessionState.READY)
            return self._advance()
        # A result that is shown, of an execution that lost its sandbox, has said so itself.
        is_reported = lost is not None and not silent
        self._unreported_loss = "" if is_reported else lost or "aborted"
        return [self._replace("restart" if self._restarts else lost or "aborted")]

    def released(self) -> list[Effect]:
        """Report that the sandbox and the workspace were given back."""
        self._track.move(SessionState.CLOSED)
        return []

    # Rules.

    def _advance(self) -> list[Effect]:
        """Start all actions that are possible in the present state."""
        effects: list[Effect] = []
        needed = self._borrowers.waiting or self._executions.first(ExecutionState.ADMITTED)
        if self.state is SessionState.EMPTY and needed:
            effects.append(self._replace("sandbox_ended"))
        if self.state is SessionState.ASLEEP and needed:
            self._track.move(SessionState.WAKING)
            effects.append(Wake())
        if self.state is SessionState.READY:
            effects += self._borrowers.grant_waiting()
            effects += self._run_or_move()
        if self.state in AT_REST:
            if (first := self._executions.first(ExecutionState.QUEUED)) is not None:
                self._executions.await_turn(first)
                effects.append(AwaitTurn(first))
            if self._close_when_idle and self.idle:
                effects += self._end_when_idle(self._close_when_idle)
        return effects

    def _end_when_idle(self, reason: str) -> list[Effect]:
        if self._leaves and self.state is SessionState.READY:
            self._track.move(SessionState.LEAVING)
            return [Left()]
        return self.close(reason)
