"""How the broker is: the pools, and whether it is alive and isolates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..pool.runner import Pool
from .base import ApiHandler, Authenticated
from .contract import operation


class Pools(ApiHandler):
    @operation({200: dict[str, Any]})
    async def get(self) -> None:
        """Tell how full the pools are: all together, and each template's."""
        pools = self.service.pools
        each = {name: asdict(pool.status()) for name, pool in pools.items()}
        self.reply({**_sum(pools), "templates": each})


class Health(Authenticated):
    def authenticate(self) -> None:
        pass

    @operation({200: dict[str, Any]}, open=True)
    async def get(self) -> None:
        """Tell that the broker is alive, with the pools and what isolation is in force."""
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
                "sessions": service.registries.open_sessions,
            }
        )


class Contract(Authenticated):
    @operation({200: dict[str, Any]})
    async def get(self) -> None:
        """The API as an OpenAPI document: this one."""
        self.reply(self.settings["contract"])


def _sum(pools: Mapping[str, Pool]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for pool in pools.values():
        total.update(asdict(pool.status()))
    return total
