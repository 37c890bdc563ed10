"""The broker's own metrics of the last hour, and the risky code that policies found lately. In memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .events import ExecutionEnded, RiskyCode, SandboxLeased, TelemetryEvent

INTERVAL_S = 10.0
_POINTS = 360
_MAX_RISKY = 500


@dataclass(frozen=True, slots=True)
class SeenRisk:
    """Risky code; `at` is in seconds since the epoch."""

    at: float
    event: RiskyCode


class History:
    """Points of time with the values of all series. `on_event` is the observer."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._points: deque[tuple[float, Mapping[str, float | None]]] = deque(maxlen=_POINTS)
        self.risky: deque[SeenRisk] = deque(maxlen=_MAX_RISKY)
        """The latest is the last one."""
        self._succeeded = self._failed = 0
        self._lease_s = 0.0
        """Of the time since the last point."""

    def on_event(self, event: TelemetryEvent) -> None:
        match event:
            case ExecutionEnded(outcome="success"):
                self._succeeded += 1
            case ExecutionEnded():
                self._failed += 1
            case SandboxLeased():
                self._lease_s = max(self._lease_s, event.seconds)
            case RiskyCode():
                self.risky.append(SeenRisk(self._clock(), event))

    def add(self, gauges: Mapping[str, float | None]) -> None:
        """Add a point with these values, and what has happened since the last one."""
        values: dict[str, float | None] = {
            **gauges,
            "succeeded": self._succeeded,
            "failed": self._failed,
            "lease_seconds": round(self._lease_s, 4),
        }
        self._succeeded = self._failed = 0
        self._lease_s = 0.0
        self._points.append((self._clock(), values))

    def series(self) -> tuple[list[float], dict[str, list[float | None]]]:
        """Return the times, in seconds since the epoch, and the values of each series at these times."""
        times = [round(at, 1) for at, _ in self._points]
        names = dict.fromkeys(name for _, values in self._points for name in values)
        return times, {name: [values.get(name) for _, values in self._points] for name in names}
