"""When a session falls asleep, and for how long it sleeps. The states are those of `machine.py`.

A session that sleeps has no sandbox; its variables are saved. It keeps its files and its id, and the next
request that needs a sandbox wakes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from kernelbroker.protocol.messages import MissingVariable

from .limits import SessionLimits
from .runner import SessionRunner
from .saved_state import SavedState
from .states import SessionState
from .streams import Streams

_ASLEEP = (SessionState.SUSPENDING, SessionState.ASLEEP)
_OF_A_SAVE = 2
"""Uses of a session by one save: its cell, and the transfer of what it saved."""


class Sleeping:
    """The sleep of one session.

    Args:
        asleep_at: by the clock, if it is asleep already.
        at_end: it falls asleep when it would expire.
        on_woken: called soon after it was woken.

    Attributes:
        kept_awake_by: what could not be saved, so that the session did not fall asleep when it was due.
    """

    def __init__(
        self,
        runner: SessionRunner,
        limits: SessionLimits,
        clock: Callable[[], float],
        streams: Streams,
        asleep_at: float | None = None,
        *,
        at_end: bool = False,
        on_woken: Callable[[], None] = lambda: None,
    ) -> None:
        self.kept_awake_by: Sequence[MissingVariable] = ()
        self._at_end = at_end
        self._runner = runner
        self._limits = limits
        self._clock = clock
        self._streams = streams
        self._refused_at: float | None = None
        """When the session was last used before a refusal. It is not tried again before the next use."""
        self._retry_at: float | None = None
        """When it is tried again all the same."""
        self._since = asleep_at
        self._slept = 0.0
        self._on_woken = on_woken

    def adopt(self, slept: float) -> None:
        """Go on with a session that has slept for so many seconds in earlier brokers."""
        self._slept = slept

    @property
    def is_asleep(self) -> bool:
        return self._runner.machine.state in _ASLEEP

    @property
    def instead_of_closing(self) -> bool:
        """Whether it falls asleep, and does not close, when it expires."""
        return self._at_end and not self.is_asleep

    @property
    def slept(self) -> float:
        """Seconds that it has slept so far. They do not count for its lifetime."""
        if self._since is None:
            return self._slept
        if self.is_asleep:
            return self._slept + self._clock() - self._since
        self._slept += max(0.0, self._runner.active - self._since)
        self._since = None
        self._on_woken()
        return self._slept

    @property
    def due_at(self) -> float | None:
        """When it should fall asleep, by the clock; None if it should not."""
        after, machine = self._limits.sleep_after, self._runner.machine
        if after is None or machine.state is not SessionState.READY or not machine.idle:
            return None
        if self._streams:
            return None
        if self._refused_at == self._runner.active:
            return self._retry_at
        return self._runner.active + after

    @property
    def expires_at(self) -> tuple[float, str] | None:
        """When a sleeping session ends, and why; None if it is awake."""
        if not self.is_asleep or self._since is None:
            return None
        retention = self._limits.asleep_retention
        return self._since + retention, f"it was asleep for {retention:g} s"

    @contextlib.contextmanager
    def saving(self) -> Iterator[Callable[[], bool]]:
        """Save in the block. Its own uses do not count as activity.

        Yields a function that tells whether nobody else has used the session since.
        """
        runner = self._runner
        active, uses = (runner.active, runner.active_at), runner.uses

        def is_undisturbed() -> bool:
            return runner.uses <= uses + _OF_A_SAVE

        try:
            yield is_undisturbed
        finally:
            if is_undisturbed():
                runner.active, runner.active_at = active

    def refuse(self, missing: Sequence[MissingVariable], *, retry: bool = False) -> None:
        """Stay awake until the session was used again, or with `retry` until the next time it is due."""
        self.kept_awake_by = missing
        after = self._limits.sleep_after
        self._retry_at = self._clock() + after if retry and after is not None else None
        self._refused_at = self._runner.active

    def begin(self, saved: SavedState) -> bool:
        """Fall asleep, if nothing runs or waits. Returns whether it does."""
        self.kept_awake_by = ()
        if not self._runner.suspend(saved):
            return False
        self._since = self._clock()
        return True
