"""Shares what tenants use among brokers, so that limits and rates hold for all of them together.

Each broker writes what its tenants do, each second, and reads what they do elsewhere. So a tenant that
changes brokers may be one second's worth beyond `rate` and `max_concurrent`. `max_sessions` is exact.
"""

from __future__ import annotations

import asyncio
import logging

from kernelbroker.protocol.errors import Unavailable

from ..service.tenant_service import TenantServices
from .directory import Directory

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
RUNNING, TAKEN = "running", "taken"


class SharedUsage:
    """The exchange of one broker."""

    def __init__(self, directory: Directory, tenants: TenantServices) -> None:
        self._directory = directory
        self._tenants = tenants
        self._taken: dict[str, float] = {}
        """What each tenant had taken elsewhere at the last look."""

    async def keep(self, broker: int) -> None:
        """Exchange until cancelled. Run under the supervisor."""
        while True:
            try:
                await self.exchange(broker)
            except Unavailable as exc:
                logger.warning("what tenants do at other brokers is not known: %s", exc.message)
            await asyncio.sleep(_INTERVAL_S)

    async def exchange(self, broker: int) -> None:
        """Write what the tenants with limits do here, and read what they do elsewhere."""
        limited = {
            service.name: service.queue
            for service in self._tenants
            if service.identity.limits.rate is not None
            or service.identity.limits.concurrent is not None
        }
        if not limited:
            return
        own = [
            (name, kind, float(value))
            for name, queue in limited.items()
            for kind, value in ((RUNNING, queue.running), (TAKEN, queue.taken))
        ]
        elsewhere = await self._directory.exchange_usage(broker, own)
        for name, queue in limited.items():
            taken = elsewhere.get((name, TAKEN), 0.0)
            more = taken - self._taken.get(name, taken)  # less if a broker has ended
            self._taken[name] = taken
            queue.note_elsewhere(int(elsewhere.get((name, RUNNING), 0.0)), int(more))
