"""Which sandboxes a pool has, each in one state, and which state may follow which. No rules of when.

A sandbox walks one way only, but for its checks::

                           CHECKING
                           │  ^   │ unhealthy, died
                  healthy  v  │   └───────────┐
    STARTING ──launched──> IDLE ──leased──> LEASED
       │                    │                 │ released
       │ launch failed      │ died, replaced  v
       └──────────> gone    └───────────> REMOVING ──removed──> gone

so a sandbox is never leased twice, and none while somebody asks how it is.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_REMEMBERED = 20
"""States of a sandbox's history; each check adds two."""


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
_LAST = (SandboxState.STARTING, SandboxState.REMOVING)
"""From these a sandbox may be gone: its launch failed, or it is removed."""


class IllegalTransition(Exception):
    """A fault of the pool's own: the message tells the sandbox's history."""


@dataclass(slots=True)
class _Entry:
    state: SandboxState = SandboxState.STARTING
    warm_at: float = math.nan
    well_at: float = math.nan
    history: deque[str] = field(
        default_factory=lambda: deque([SandboxState.STARTING.value], _REMEMBERED)
    )


class Sandboxes:
    """The table. What is not allowed raises IllegalTransition, and changes nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._idle: deque[str] = deque()

    def add(self, sandbox_id: str) -> None:
        """It is STARTING."""
        self._entries[sandbox_id] = _Entry()

    def found_well(self, sandbox_id: str, now: float) -> None:
        """It is IDLE, for it has been launched, or checked, at `now`."""
        self.move(sandbox_id, SandboxState.IDLE)
        entry = self._entries[sandbox_id]
        entry.well_at = now
        if math.isnan(entry.warm_at):
            entry.warm_at = now

    def move(self, sandbox_id: str, to: SandboxState) -> None:
        """It is in another state from now on; IDLE by `found_well` alone."""
        entry = self._entries.get(sandbox_id)
        if entry is None or to not in _TRANSITIONS[entry.state]:
            raise IllegalTransition(f"{sandbox_id} cannot become {to.value}; {_past(entry)}")
        if entry.state is SandboxState.IDLE:
            self._idle.remove(sandbox_id)
        if to is SandboxState.IDLE:
            self._idle.append(sandbox_id)
        entry.state = to
        entry.history.append(to.value)

    def drop(self, sandbox_id: str, state: SandboxState) -> None:
        """It is gone, and was in `state`, one of the last."""
        assert state in _LAST
        self.expect(sandbox_id, state)
        del self._entries[sandbox_id]

    def expect(self, sandbox_id: str, state: SandboxState) -> None:
        """Raises IllegalTransition unless it is in `state`."""
        if not self.is_in(sandbox_id, state):
            past = _past(self._entries.get(sandbox_id))
            raise IllegalTransition(f"{sandbox_id} is not {state.value}; {past}")

    # What can be seen.

    def is_in(self, sandbox_id: str, *states: SandboxState) -> bool:
        """Whether it is in one of these states; False where it is gone."""
        entry = self._entries.get(sandbox_id)
        return entry is not None and entry.state in states

    def names(self, *states: SandboxState) -> list[str]:
        return [name for name, entry in self._entries.items() if entry.state in states]

    def count(self, *states: SandboxState) -> int:
        return sum(entry.state in states for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def idle(self) -> Sequence[str]:
        """The idle ones, the one that became so first at the front."""
        return self._idle

    def warm_at(self, sandbox_id: str) -> float:
        """When it was launched; NaN while it is STARTING."""
        return self._entries[sandbox_id].warm_at

    def well_at(self, sandbox_id: str) -> float:
        """When it was last known to be well; NaN while it is STARTING."""
        return self._entries[sandbox_id].well_at

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert sorted(self._idle) == sorted(self.names(SandboxState.IDLE)), (
            self._idle,
            self._entries,
        )
        for entry in self._entries.values():
            assert entry.history[-1] == entry.state.value
            known = not math.isnan(entry.warm_at) and not math.isnan(entry.well_at)
            assert known == (entry.state is not SandboxState.STARTING), entry


def _past(entry: _Entry | None) -> str:
    return f"it was {[] if entry is None else list(entry.history)}"
