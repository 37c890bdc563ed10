"""The sandboxes of a pool and their states. No I/O, and no rules of when a state changes.

These are the transitions::

                           CHECKING
                           │  ^   │ unhealthy, died
                  healthy  v  │   └───────────┐
    STARTING ──launched──> IDLE ──leased──> LEASED
       │                    │                 │ released
       │ launch failed      │ died, replaced  v
       └──────────> gone    └───────────> REMOVING ──removed──> gone

So a sandbox is never leased twice, and never leased while it is being checked.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_HISTORY_LENGTH = 20
"""States kept in a sandbox's history; each health check adds two."""


class SandboxState(enum.Enum):
    STARTING = "starting"
    IDLE = "idle"
    CHECKING = "checking"
    LEASED = "leased"
    REMOVING = "removing"


_TRANSITIONS: dict[SandboxState, frozenset[SandboxState]] = {
    SandboxState.STARTING: frozenset({SandboxState.IDLE}),
    SandboxState.IDLE: frozenset(
        {SandboxState.CHECKING, SandboxState.LEASED, SandboxState.REMOVING}
    ),
    SandboxState.CHECKING: frozenset({SandboxState.IDLE, SandboxState.REMOVING}),
    SandboxState.LEASED: frozenset({SandboxState.REMOVING}),
    SandboxState.REMOVING: frozenset(),
}
_FINAL = (SandboxState.STARTING, SandboxState.REMOVING)
"""A sandbox in one of these states may be deleted: its launch failed, or it was removed."""


class IllegalTransition(Exception):
    """A bug in the pool: a sandbox cannot change its state like this.

    Attributes:
        sandbox_id: which one.
        history: its latest states, oldest first; empty if there is no such sandbox.
    """

    def __init__(self, sandbox_id: str, problem: str, history: Sequence[str]) -> None:
        super().__init__(f"{sandbox_id} {problem}; its history is {list(history)}")
        self.sandbox_id = sandbox_id
        self.history = tuple(history)


@dataclass(slots=True)
class _Entry:
    state: SandboxState = SandboxState.STARTING
    warm_at: float = math.nan
    healthy_at: float = math.nan
    history: deque[str] = field(
        default_factory=lambda: deque([SandboxState.STARTING.value], _HISTORY_LENGTH)
    )


class Sandboxes:
    """All sandboxes by id. An illegal transition raises IllegalTransition and changes nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._idle: deque[str] = deque()

    def add(self, sandbox_id: str) -> None:
        """Add a sandbox in the state STARTING."""
        self._entries[sandbox_id] = _Entry()

    def mark_healthy(self, sandbox_id: str, now: float) -> None:
        """Move a sandbox to IDLE: its launch or its health check succeeded at `now`."""
        self.move(sandbox_id, SandboxState.IDLE)
        entry = self._entries[sandbox_id]
        entry.healthy_at = now
        if math.isnan(entry.warm_at):
            entry.warm_at = now

    def move(self, sandbox_id: str, to: SandboxState) -> None:
        """Change the state of a sandbox. For IDLE use `mark_healthy`."""
        entry = self._entries.get(sandbox_id)
        if entry is None or to not in _TRANSITIONS[entry.state]:
            raise IllegalTransition(sandbox_id, f"cannot become {to.value}", _history(entry))
        if entry.state is SandboxState.IDLE:
            self._idle.remove(sandbox_id)
        if to is SandboxState.IDLE:
            self._idle.append(sandbox_id)
        entry.state = to
        entry.history.append(to.value)

    def drop(self, sandbox_id: str, state: SandboxState) -> None:
        """Delete a sandbox that is in `state`, which is one of the last states."""
        assert state in _FINAL
        self.require(sandbox_id, state)
        del self._entries[sandbox_id]

    def require(self, sandbox_id: str, state: SandboxState) -> None:
        """Raise IllegalTransition unless the sandbox is in `state`."""
        if not self.is_in(sandbox_id, state):
            history = _history(self._entries.get(sandbox_id))
            raise IllegalTransition(sandbox_id, f"is not {state.value}", history)

    # Queries.

    def is_in(self, sandbox_id: str, *states: SandboxState) -> bool:
        """Whether the sandbox exists and is in one of these states."""
        entry = self._entries.get(sandbox_id)
        return entry is not None and entry.state in states

    def state_of(self, sandbox_id: str) -> SandboxState:
        return self._entries[sandbox_id].state

    def names(self, *states: SandboxState) -> list[str]:
        """The ids of all sandboxes in one of these states."""
        return [name for name, entry in self._entries.items() if entry.state in states]

    def count(self, *states: SandboxState) -> int:
        return sum(entry.state in states for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def idle(self) -> Sequence[str]:
        """The ids of the idle sandboxes; the one that has been idle for longest comes first."""
        return self._idle

    def warm_at(self, sandbox_id: str) -> float:
        """When its launch succeeded; NaN while it is STARTING."""
        return self._entries[sandbox_id].warm_at

    def healthy_at(self, sandbox_id: str) -> float:
        """When its launch or its latest health check succeeded; NaN while it is STARTING."""
        return self._entries[sandbox_id].healthy_at

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert sorted(self._idle) == sorted(self.names(SandboxState.IDLE)), (
            self._idle,
            self._entries,
        )
        for entry in self._entries.values():
            assert entry.history[-1] == entry.state.value
            known = not math.isnan(entry.warm_at) and not math.isnan(entry.healthy_at)
            assert known == (entry.state is not SandboxState.STARTING), entry


def _history(entry: _Entry | None) -> Sequence[str]:
    return () if entry is None else tuple(entry.history)
