"""The pool's rules as a table of states. No I/O, no clock, no tasks.

Every method decides at once and returns what is to be done as actions; the runner carries them out
and tells how they went. A sandbox walks one way only::

    STARTING ──launched──> IDLE ──leased──> LEASED
       │                    │                 │ released, died
       │ launch failed      │ died            v
       └──────────> gone <──┴──────────── REMOVING ──removed──> gone

so a sandbox is never leased twice. Waiters are served in order of arrival, those of a session that
lost its sandbox before those that have had none.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


class SandboxState(enum.Enum):
    STARTING = "starting"
    IDLE = "idle"
    LEASED = "leased"
    REMOVING = "removing"


_TRANSITIONS: dict[SandboxState, frozenset[SandboxState]] = {
    SandboxState.STARTING: frozenset({SandboxState.IDLE}),
    SandboxState.IDLE: frozenset({SandboxState.LEASED, SandboxState.REMOVING}),
    SandboxState.LEASED: frozenset({SandboxState.REMOVING}),
    SandboxState.REMOVING: frozenset(),
}
"""STARTING and REMOVING also end in the sandbox being gone, when the launch failed or it is removed."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a sandbox under this id, then report `launched` or `launch_failed`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the sandbox, then report `removed`."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """The waiter has the sandbox now; it is LEASED already."""

    waiter: int
    sandbox_id: str


Action: TypeAlias = Launch | Remove | Assign


class PoolFull(Exception):
    """No sandbox is idle and as many as may wait are waiting."""


class IllegalTransition(Exception):
    """A fault of the pool's own: the message tells the sandbox's history."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many sandboxes there may be.

    Attributes:
        min_size: sandboxes kept warm and free, as far as `max_size` allows.
        max_size: sandboxes in any state, those being removed included.
        max_waiters: who may wait for one.
        max_launches: launches under way at once.
    """

    min_size: int = 3
    max_size: int = 10
    max_waiters: int = 100
    max_launches: int = 2


class PoolState:
    """The table. `validate_state` holds after every call."""

    def __init__(self, limits: PoolLimits, new_id: Callable[[], str]) -> None:
        self.limits = limits
        self._new_id = new_id
        self._states: dict[str, SandboxState] = {}
        self._history: dict[str, list[str]] = {}
        self._idle: deque[str] = deque()
        self._urgent: deque[int] = deque()
        self._waiting: deque[int] = deque()
        self._held = False
        self._closed = False

    # What clients of the pool ask.

    def acquire(self, waiter: int, *, urgent: bool = False) -> list[Action]:
        """Ask for a sandbox; an `Assign` for this waiter comes now or from a later call.

        Raises:
            PoolFull: too many are waiting; nothing has changed.
        """
        if not urgent and not self._idle and len(self._waiting) >= self.limits.max_waiters:
            raise PoolFull
        (self._urgent if urgent else self._waiting).append(waiter)
        return self._settle()

    def cancel(self, waiter: int) -> None:
        """The waiter has gone. One that was assigned a sandbox already must release it instead."""
        for queue in (self._urgent, self._waiting):
            if waiter in queue:
                queue.remove(waiter)

    def release(self, sandbox_id: str) -> list[Action]:
        """The lease has ended."""
        self._move(sandbox_id, SandboxState.REMOVING)
        return [Remove(sandbox_id), *self._settle()]

    def close(self) -> list[Action]:
        """No more launches; idle sandboxes are removed. Leased ones are, as they are released."""
        self._closed = True
        idle, self._idle = list(self._idle), deque()
        for sandbox_id in idle:
            self._move(sandbox_id, SandboxState.REMOVING)
        return [Remove(sandbox_id) for sandbox_id in idle]

    # What the runner reports.

    def launched(self, sandbox_id: str) -> list[Action]:
        """The sandbox is warm."""
        self._move(sandbox_id, SandboxState.IDLE)
        if self._closed:
            self._move(sandbox_id, SandboxState.REMOVING)
            return [Remove(sandbox_id)]
        self._idle.append(sandbox_id)
        return self._settle()

    def launch_failed(self, sandbox_id: str) -> None:
        """Nothing was left behind. No launch follows before `resume_launches`."""
        self._expect(sandbox_id, SandboxState.STARTING)
        self._forget(sandbox_id)
        self._held = True

    def resume_launches(self) -> list[Action]:
        """The pause after a failed launch is over."""
        self._held = False
        return self._settle()

    def died(self, sandbox_id: str) -> list[Action]:
        """A sandbox ended by itself. A leased one stays its session's until that releases it."""
        if self._states.get(sandbox_id) is not SandboxState.IDLE:
            return []
        self._idle.remove(sandbox_id)
        self._move(sandbox_id, SandboxState.REMOVING)
        return [Remove(sandbox_id), *self._settle()]

    def removed(self, sandbox_id: str) -> list[Action]:
        """Every trace of it is gone."""
        self._expect(sandbox_id, SandboxState.REMOVING)
        self._forget(sandbox_id)
        return self._settle()

    # What can be seen.

    def count(self, *states: SandboxState) -> int:
        """Sandboxes in any of these states; in all of them if none is given."""
        return sum(not states or state in states for state in self._states.values())

    @property
    def waiters(self) -> int:
        return len(self._urgent) + len(self._waiting)

    @property
    def empty(self) -> bool:
        return not self._states

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        limits = self.limits
        idle = {i for i, state in self._states.items() if state is SandboxState.IDLE}
        assert set(self._idle) == idle, (self._idle, self._states)
        assert len(self._idle) == len(idle), self._idle
        assert len(self._states) <= limits.max_size, self._states
        assert self.count(SandboxState.STARTING) <= limits.max_launches, self._states
        assert len(self._waiting) <= limits.max_waiters
        assert not (self._idle and self.waiters), "a sandbox is idle while somebody waits"
        assert not (self._closed and self._idle), "a closed pool keeps sandboxes"
        assert self._history.keys() == self._states.keys()

    # The rules.

    def _settle(self) -> list[Action]:
        """Hand idle sandboxes to waiters, then launch what is missing."""
        actions: list[Action] = []
        while self._idle and self.waiters:
            sandbox_id = self._idle.popleft()
            self._move(sandbox_id, SandboxState.LEASED)
            queue = self._urgent or self._waiting
            actions.append(Assign(queue.popleft(), sandbox_id))
        while self._wants_launch():
            sandbox_id = self._new_id()
            self._states[sandbox_id] = SandboxState.STARTING
            self._history[sandbox_id] = ["starting"]
            actions.append(Launch(sandbox_id))
        return actions

    def _wants_launch(self) -> bool:
        starting = self.count(SandboxState.STARTING)
        return (
            not self._closed
            and not self._held
            and len(self._states) < self.limits.max_size
            and starting < self.limits.max_launches
            and starting + len(self._idle) < self.waiters + self.limits.min_size
        )

    def _move(self, sandbox_id: str, to: SandboxState) -> None:
        state = self._states.get(sandbox_id)
        if state is None or to not in _TRANSITIONS[state]:
            raise IllegalTransition(
                f"{sandbox_id} cannot become {to.value}; it was {self._history.get(sandbox_id, [])}"
            )
        self._states[sandbox_id] = to
        self._history[sandbox_id].append(to.value)

    def _expect(self, sandbox_id: str, state: SandboxState) -> None:
        if self._states.get(sandbox_id) is not state:
            raise IllegalTransition(
                f"{sandbox_id} is not {state.value}; it was {self._history.get(sandbox_id, [])}"
            )

    def _forget(self, sandbox_id: str) -> None:
        del self._states[sandbox_id]
        del self._history[sandbox_id]
