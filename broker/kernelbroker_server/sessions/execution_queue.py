"""The queue of a session's executions: one may run, the others wait in order. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .effects import Failure, Reject
from .states import EXECUTION_TRANSITIONS, ExecutionState, StateTrack


@dataclass(frozen=True, slots=True)
class _Entry:
    track: StateTrack[ExecutionState]
    silent: bool

    @property
    def state(self) -> ExecutionState:
        return self.track.current


class ExecutionQueue:
    """The executions by id. Only the first waiting one may have asked for its turn.

    Attributes:
        running: the id of the running execution, or None.
    """

    def __init__(self) -> None:
        self.running: str | None = None
        self._entries: dict[str, _Entry] = {}
        self._waiting: deque[str] = deque()

    def __len__(self) -> int:
        """The number of waiting executions."""
        return len(self._waiting)

    def __contains__(self, execution_id: str) -> bool:
        """Whether the execution with this id waits."""
        return execution_id in self._waiting

    def state(self, execution_id: str) -> ExecutionState:
        """Return the state of an execution; DONE if it has ended or was never added."""
        entry = self._entries.get(execution_id)
        return ExecutionState.DONE if entry is None else entry.state

    def first(self, state: ExecutionState) -> str | None:
        """Return the first waiting execution if it is in this state."""
        if not self._waiting or self._entries[self._waiting[0]].state is not state:
            return None
        return self._waiting[0]

    def add(self, execution_id: str, *, silent: bool) -> None:
        subject = f"execution {execution_id}"
        track = StateTrack(subject, ExecutionState.QUEUED, EXECUTION_TRANSITIONS)
        self._entries[execution_id] = _Entry(track, silent)
        self._waiting.append(execution_id)

    def await_turn(self, execution_id: str) -> None:
        self._entries[execution_id].track.move(ExecutionState.WAITING)

    def admit(self, execution_id: str) -> None:
        self._entries[execution_id].track.move(ExecutionState.ADMITTED)

    def run_first(self) -> tuple[str, bool]:
        """Move the first, admitted execution to RUNNING. Returns its id, and whether it is silent."""
        execution_id = self._waiting[0]
        entry = self._entries[execution_id]
        entry.track.move(ExecutionState.RUNNING)
        self._waiting.popleft()
        self.running = execution_id
        return execution_id, entry.silent

    def end_running(self) -> bool:
        """Remove the running execution, which has ended. Returns whether it was silent."""
        assert self.running is not None, "an execution runs"
        entry = self._entries.pop(self.running)
        entry.track.move(ExecutionState.DONE)
        self.running = None
        return entry.silent

    def reject(self, execution_id: str, failure: Failure) -> Reject:
        """Remove a waiting execution."""
        entry = self._entries.pop(execution_id)
        self._waiting.remove(execution_id)
        awaited_turn = entry.state is not ExecutionState.QUEUED
        entry.track.move(ExecutionState.DONE)
        return Reject(execution_id, failure, awaited_turn)

    def reject_all(self, failure: Failure) -> list[Reject]:
        return [self.reject(execution_id, failure) for execution_id in list(self._waiting)]

    def forget(self) -> None:
        """Remove all executions. They do not end here."""
        self.running = None
        self._entries.clear()
        self._waiting.clear()

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        running = [] if self.running is None else [self.running]
        assert sorted([*self._waiting, *running]) == sorted(self._entries)
        for execution_id in list(self._waiting)[1:]:
            assert self.state(execution_id) is ExecutionState.QUEUED
        if self._waiting:
            assert self.state(self._waiting[0]) is not ExecutionState.RUNNING
        if self.running is not None:
            assert self.state(self.running) is ExecutionState.RUNNING
