"""The state of a session's machine: what can be asked of it, and its invariants. No rules."""

from __future__ import annotations

from kernelbroker.protocol.errors import SessionGone, Unavailable

from .borrowers import Borrowers
from .execution_queue import ExecutionQueue
from .states import SESSION_TRANSITIONS, ExecutionState, SessionState, StateTrack

AT_REST = (SessionState.READY, SessionState.EMPTY, SessionState.ASLEEP)
"""The states in which nothing is under way."""
_RUNNING = (
    SessionState.RUNNING,
    SessionState.ABORTING,
    SessionState.LEAVING,
    SessionState.CLOSING,
)
_CLOSED = (SessionState.CLOSING, SessionState.RELEASING, SessionState.CLOSED)
_RESTARTING = (
    SessionState.OPENING,
    SessionState.ABORTING,
    SessionState.REPLACING,
    SessionState.MOVING,
    SessionState.SAVING,
    SessionState.SUSPENDING,
    SessionState.WAKING,
)
"""The states in which a caller of `restart` waits."""


class MachineState:
    """The base of `SessionMachine`.

    Args:
        first: the first state: OPENING, or ASLEEP for a session that fell asleep in an earlier broker.

    Attributes:
        closed_reason: why the session is closed; None while it is open.
    """

    def __init__(self, session_id: str, first: SessionState = SessionState.OPENING) -> None:
        self.closed_reason: str | None = None
        self._id = session_id
        self._track = StateTrack(f"session {session_id}", first, SESSION_TRANSITIONS)
        self._executions = ExecutionQueue()
        self._borrowers = Borrowers()
        self._restarts = 0
        """Callers of `restart` that wait for an answer."""
        self._unreported_loss = ""
        """The reason why variables were lost, until a result has reported it."""
        self._close_when_idle = ""
        """The reason with which the session closes as soon as nothing is left to do."""
        self._moves_for: str | None = None
        """The execution that has its turn, and for which the session moves first."""
        self._leaves = False
        """If its sandbox lives then, the session is left to the next broker instead."""

    @property
    def state(self) -> SessionState:
        return self._track.current

    @property
    def history(self) -> tuple[str, ...]:
        return tuple(self._track.history)

    @property
    def queued(self) -> int:
        """The number of executions that have not begun."""
        return len(self._executions)

    @property
    def running(self) -> str | None:
        """The id of the running execution, or None."""
        return self._executions.running

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or uses the gateway."""
        return self.running is None and not self._executions and not self._borrowers

    @property
    def can_sleep(self) -> bool:
        """Whether nothing is asked of the session, in the state SAVING or later."""
        is_asked = self._restarts or self._close_when_idle or self.closed_reason is not None
        return self.idle and not is_asked

    def execution_state(self, execution_id: str) -> ExecutionState:
        """Return the state of an execution; DONE if the machine does not know it."""
        return self._executions.state(execution_id)

    def expect_open(self) -> None:
        """Check that the session is open. Raises SessionGone, or Unavailable if it is left."""
        if self.state is SessionState.LEAVING:
            raise Unavailable("the broker is restarting; try again", retry_after=1)
        if self.closed_reason is not None:
            raise SessionGone(f"session {self._id} is closed: {self.closed_reason}")

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        state, executions, borrowers = self.state, self._executions, self._borrowers
        executions.validate_state()
        borrowers.validate_state()
        if self.running is not None:
            assert state in _RUNNING
        else:
            assert state not in (SessionState.RUNNING, SessionState.ABORTING)
        if state in AT_REST:
            assert not borrowers.waiting
            waits = executions.first(ExecutionState.WAITING) is not None
            moves = self._moves_for is not None and bool(borrowers)  # when they have ended
            assert not executions or waits or moves
            assert not (self._close_when_idle and self.idle), "it has to be closed by now"
        if state in (
            SessionState.MOVING,
            SessionState.SAVING,
            SessionState.SUSPENDING,
            SessionState.ASLEEP,
            SessionState.WAKING,
        ):
            assert len(borrowers.waiting) == len(borrowers), "nobody holds a gateway that is gone"
        assert not self._restarts or state in _RESTARTING
        assert (self.closed_reason is not None) == (state in _CLOSED)
        if self.closed_reason is not None:
            assert not executions
            assert not borrowers.waiting
