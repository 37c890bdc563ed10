"""How the broker is: the pools, and whether it is alive and isolates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from ..pool.runner import Pool
from .base import ApiHandler, Authenticated


class PoolStatus(ApiHandler):
    """GET /api/v1/pool/status: all pools together, and each template's with its details."""

    async def get(self) -> None:
        pools = self.service.pools
        each = {
            name: asdict(pool.status()) | asdict(pool.details()) for name, pool in pools.items()
        }
        self.reply({**_sum(pools), "templates": each})


class Health(Authenticated):
    """GET /health, without a token: alive, with the pools and what isolation is in force."""

    def authenticate(self) -> None:
        pass

    async def get(self) -> None:
        service = self.service
        failures = (pool.last_failure for pool in service.pools.values())
        self.reply(
            {
                "status": "ok",
                "version": service.version,
                "isolation": service.backend.isolation,
                "backend": service.backend.describe(),
                "pool": _sum(service.pools),
                "last_launch_failure": next(filter(None, failures), None),
                "sessions": len(service.registry.list()),
            }
        )


def _sum(pools: Mapping[str, Pool]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for pool in pools.values():
        total.update(asdict(pool.status()))
    return total
