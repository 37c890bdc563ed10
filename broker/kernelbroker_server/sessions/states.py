"""The states of sessions, executions and borrowers, and their transition tables.

A session::

    OPENING ──> READY <──────────> RUNNING ──> ABORTING
       │        │ │ ^                 │            │
       │        │ │ └── REPLACING <───┴────────────┘
       │        │ v      │   ^
       │        │ EMPTY <┘   │        (from EMPTY when a sandbox is needed)
       │        │   └────────┘
       v        v
    CLOSING ──> RELEASING ──> CLOSED  (CLOSING waits for running work in the sandbox)

    READY, RUNNING ──> LEAVING ──> RELEASING   (the next broker goes on with it, unless it is closed before)

    READY ──> MOVING ──> ASLEEP   (and on at once: the next execution wakes it in another pool)

    READY <──> SAVING ──> SUSPENDING, REPLACING   (its processes are being saved; it is closed after that)

    READY ──> SUSPENDING ──> ASLEEP <──> WAKING ──> READY   (from ASLEEP also to REPLACING, for a restart;
                                                             from each of them to the end)

An execution: QUEUED -> WAITING -> ADMITTED -> RUNNING -> DONE, and DONE from each of the others.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

_REMEMBERED = 20
"""States that a history keeps."""


class _State(enum.Enum):
    """A state. Its hash is its identity: that of `Enum` is slow, and each cell looks up a dozen states."""

    __hash__ = object.__hash__


class SessionState(_State):
    OPENING = "opening"
    """Its first sandbox is being acquired."""
    READY = "ready"
    """It has a living sandbox, in which no execution runs."""
    RUNNING = "running"
    """An execution runs."""
    ABORTING = "aborting"
    """The running execution is being ended together with its sandbox."""
    REPLACING = "replacing"
    """The old sandbox is given back and a fresh one is acquired, with the same files."""
    EMPTY = "empty"
    """It has no living sandbox. The next use acquires one."""
    MOVING = "moving"
    """Its variables are being saved, and its sandbox given back, for a move to another pool."""
    SAVING = "saving"
    """The processes of its sandbox stand still and are being saved."""
    SUSPENDING = "suspending"
    """Its variables are saved. The sandbox is being given back."""
    ASLEEP = "asleep"
    """It has no sandbox. The next use acquires one, and loads the variables there."""
    WAKING = "waking"
    """A sandbox is acquired, and the variables are loaded."""
    LEAVING = "leaving"
    """It accepts nothing more. It is left to the next broker, with its sandbox and what runs there."""
    CLOSING = "closing"
    """It is closed. An execution or an acquisition is still ending."""
    RELEASING = "releasing"
    """It is closed. The sandbox and the workspace are given back."""
    CLOSED = "closed"
    """Nothing is left."""


class ExecutionState(_State):
    QUEUED = "queued"
    """Behind other executions of its session."""
    WAITING = "waiting"
    """First in its session's queue; it waits for its turn among all sessions."""
    ADMITTED = "admitted"
    """It has its turn and waits for a sandbox."""
    RUNNING = "running"
    DONE = "done"
    """Its result is stored."""


class BorrowerState(_State):
    WAITING = "waiting"
    """For a living sandbox."""
    HOLDING = "holding"
    """It uses the sandbox's gateway."""
    DONE = "done"


SESSION_TRANSITIONS: Mapping[SessionState, frozenset[SessionState]] = {
    SessionState.OPENING: frozenset(
        {SessionState.READY, SessionState.CLOSING, SessionState.RELEASING}
    ),
    SessionState.READY: frozenset(
        {
            SessionState.RUNNING,
            SessionState.REPLACING,
            SessionState.EMPTY,
            SessionState.SAVING,
            SessionState.SUSPENDING,
            SessionState.MOVING,
            SessionState.LEAVING,
            SessionState.RELEASING,
        }
    ),
    SessionState.RUNNING: frozenset(
        {
            SessionState.READY,
            SessionState.ABORTING,
            SessionState.REPLACING,
            SessionState.LEAVING,
            SessionState.CLOSING,
        }
    ),
    SessionState.ABORTING: frozenset({SessionState.REPLACING, SessionState.CLOSING}),
    SessionState.REPLACING: frozenset(
        {SessionState.READY, SessionState.EMPTY, SessionState.CLOSING}
    ),
    SessionState.EMPTY: frozenset({SessionState.REPLACING, SessionState.RELEASING}),
    SessionState.MOVING: frozenset({SessionState.ASLEEP, SessionState.CLOSING}),
    SessionState.SAVING: frozenset(
        {
            SessionState.READY,
            SessionState.REPLACING,
            SessionState.SUSPENDING,
            SessionState.CLOSING,
        }
    ),
    SessionState.SUSPENDING: frozenset({SessionState.ASLEEP, SessionState.CLOSING}),
    SessionState.ASLEEP: frozenset(
        {SessionState.WAKING, SessionState.REPLACING, SessionState.RELEASING}
    ),
    SessionState.WAKING: frozenset(
        {
            SessionState.READY,
            SessionState.ASLEEP,
            SessionState.REPLACING,
            SessionState.CLOSING,
        }
    ),
    SessionState.LEAVING: frozenset({SessionState.RELEASING}),
    SessionState.CLOSING: frozenset({SessionState.RELEASING}),
    SessionState.RELEASING: frozenset({SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}

EXECUTION_TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = {
    ExecutionState.QUEUED: frozenset({ExecutionState.WAITING, ExecutionState.DONE}),
    ExecutionState.WAITING: frozenset({ExecutionState.ADMITTED, ExecutionState.DONE}),
    ExecutionState.ADMITTED: frozenset({ExecutionState.RUNNING, ExecutionState.DONE}),
    ExecutionState.RUNNING: frozenset({ExecutionState.DONE}),
    ExecutionState.DONE: frozenset(),
}

BORROWER_TRANSITIONS: Mapping[BorrowerState, frozenset[BorrowerState]] = {
    BorrowerState.WAITING: frozenset({BorrowerState.HOLDING, BorrowerState.DONE}),
    BorrowerState.HOLDING: frozenset({BorrowerState.DONE}),
    BorrowerState.DONE: frozenset(),
}

State = TypeVar("State", bound=enum.Enum)


class IllegalTransition(Exception):
    """A transition that the table forbids: a bug in the broker.

    Attributes:
        subject: the owner of the state, such as `session 12ab`.
        state, asked: the present state, and the one that may not follow it.
        history: the names of the latest states, oldest first.
    """

    def __init__(
        self, subject: str, state: enum.Enum, asked: enum.Enum, history: Sequence[str]
    ) -> None:
        super().__init__(
            f"{subject} is {state.value} and cannot become {asked.value}; it was {list(history)}"
        )
        self.subject = subject
        self.state = state
        self.asked = asked
        self.history = tuple(history)


class StateTrack(Generic[State]):
    """A state with its transition table and its history.

    Attributes:
        current: the present state.
        history: the names of the latest states, oldest first.
    """

    def __init__(
        self, subject: str, first: State, transitions: Mapping[State, frozenset[State]]
    ) -> None:
        self.current = first
        self.history: deque[str] = deque([first.value], _REMEMBERED)
        self._subject = subject
        self._transitions = transitions

    def move(self, to: State) -> None:
        """Change the state. Raises IllegalTransition, and changes nothing, if the table forbids it."""
        if to not in self._transitions[self.current]:
            raise IllegalTransition(self._subject, self.current, to, self.history)
        self.current = to
        self.history.append(to.value)
