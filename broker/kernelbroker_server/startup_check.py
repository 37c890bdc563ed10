"""Decides whether a broker that has just started works: from its backends, and from the first launches."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

from .backends.backend_set import BackendSet
from .backends.base import Isolation, LaunchError, Network
from .config import ConfigError, Settings
from .pool.runner import Pool
from .telemetry.events import LaunchEnded, TelemetryEvent

logger = logging.getLogger(__name__)

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


def check_isolation(settings: Settings, backends: BackendSet) -> None:
    """Check that code without isolation is out of the reach of other machines. Raises ConfigError."""
    if backends.weakest_isolation is Isolation.PROCESS and not (
        settings.on_loopback or settings.unsafe_expose_without_isolation
    ):
        raise ConfigError(
            f"user code would run without isolation, so host must not be {settings.host}. "
            "Do what `kernelbroker doctor` advises, listen on 127.0.0.1, or accept "
            "the risk with unsafe_expose_without_isolation = true"
        )


def check_networks(pools: Iterable[Pool]) -> None:
    """Check that the backend of each template supports its network. Raises ConfigError."""
    for pool in pools:
        try:
            pool.backend.require_network(pool.spec)
        except LaunchError as exc:
            raise ConfigError(str(exc)) from exc
        if pool.spec.network is Network.OPEN:
            logger.warning(
                "OPEN NETWORK: sandboxes of the template %s can reach all that this host can reach",
                pool.spec.template,
            )
