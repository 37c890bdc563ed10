"""Decides from the first launches whether a broker that has just started works."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from .telemetry.events import LaunchEnded, TelemetryEvent

_ATTEMPTS = 2
"""Launches of a template that fail before it counts as broken. One may fail because of a busy machine."""


class StartupCheck:
    """Observes the first launches of each template.

    If they fail for all templates, the cause is nearly always a setting or a missing program, and the
    broker ends with the reason. After one success the check is over: `/health` reports later failures.

    Args:
        templates: the templates whose pools launch sandboxes at the start.

    Attributes:
        failed: set when the launches of all templates fail; `message` has the reason.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        self.failed = asyncio.Event()
        self._remaining = Counter(dict.fromkeys(templates, _ATTEMPTS))
        self._reasons: dict[str, str] = {}

    def on_event(self, event: TelemetryEvent) -> None:
        if not isinstance(event, LaunchEnded) or event.template not in self._remaining:
            return
        if event.failure is None:
            self._remaining.clear()
            return
        self._reasons[event.template] = event.failure
        self._remaining[event.template] -= 1
        if not any(count > 0 for count in self._remaining.values()):
            self.failed.set()

    def message(self) -> str:
        """Return the reason for the operator."""
        reasons = "; ".join(f"template {name}: {why}" for name, why in self._reasons.items())
        return (
            f"no sandbox could be launched, so no code could run. {reasons}. "
            "Correct this and start the broker again"
        )
