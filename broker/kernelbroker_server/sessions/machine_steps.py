"""The steps of a session's machine that its rules are made of. No I/O."""

from __future__ import annotations

from kernelbroker.protocol.errors import RequestError, SessionGone

from .effects import AnswerRestarts, Effect, Failure, Move, Release, Replace, Run
from .machine_state import MachineState
from .states import ExecutionState, SessionState


class MachineSteps(MachineState):
    """The base of `SessionMachine`. Each step changes the state and returns the effects."""

    def _end(self, reason: str) -> list[Effect]:
        """Accept nothing more, and answer everything that waits."""
        self.closed_reason = reason
        never_ran = Failure("rejected", "SessionClosed", reason)
        gone = SessionGone(f"session {self._id} is closed: {reason}")
        return [*self._executions.reject_all(never_ran), *self._answer(gone)]

    def _run_or_move(self) -> list[Effect]:
        """Run the execution that has its turn, or move for it as soon as nobody uses the gateway."""
        if (first := self._executions.first(ExecutionState.ADMITTED)) is None:
            return []
        if first != self._moves_for:
            return [self._run_first()]
        if self._borrowers:
            return []
        self._moves_for = None
        self._track.move(SessionState.MOVING)
        return [Move(first)]

    def _run_first(self) -> Effect:
        execution_id, silent = self._executions.run_first()
        self._track.move(SessionState.RUNNING)
        state_lost = bool(self._unreported_loss)
        if not silent:
            self._unreported_loss = ""
        return Run(execution_id, state_lost)

    def _replace(self, cause: str) -> Effect:
        self._track.move(SessionState.REPLACING)
        return Replace(cause)

    def _release(self) -> Effect:
        self._track.move(SessionState.RELEASING)
        return Release()

    def _answer(self, error: RequestError | None) -> list[Effect]:
        """Answer restarts and, if there is an error, waiting borrowers."""
        effects: list[Effect] = []
        if self._restarts:
            self._restarts = 0
            effects.append(AnswerRestarts(error))
        return effects if error is None else [*effects, *self._borrowers.refuse_waiting(error)]
