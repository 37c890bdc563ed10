"""How the broker is: the pools, and whether it is alive and isolates."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from kernelbroker.protocol.errors import NotFound, Unauthorized, Unavailable

from ..pool.runner import Pool, PoolStatus
from ..telemetry.metrics import CONTENT_TYPE
from .base import ApiHandler, Authenticated
from .contract import Content, operation


class Pools(ApiHandler):
    @operation({200: dict[str, Any]})
    async def get(self) -> None:
        """Tell how full the pools are that one may use: all together, and each template's."""
        pools = self.registry.pools
        each = {
            name: asdict(pool.status()) | asdict(pool.details()) for name, pool in pools.items()
        }
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


class Live(Health):
    @operation({200: dict[str, Any]}, open=True)
    async def get(self) -> None:
        """Tell that the broker runs: where this fails, start it again."""
        self.reply({"status": "ok"})


class Ready(Health):
    @operation({200: dict[str, Any]}, open=True)
    async def get(self) -> None:
        """Tell that sessions can be opened: where this fails, send them elsewhere for now."""
        if self.service.registries.stopping:
            raise Unavailable("the broker is shutting down", retry_after=10)
        if not any(pool.ready for pool in self.service.pools.values()):
            failures = (pool.last_failure for pool in self.service.pools.values())
            why = next(filter(None, failures), "they are being launched")
            raise Unavailable(f"no sandbox can be had yet: {why}", retry_after=1)
        self.reply({"status": "ok"})


class MetricsText(Authenticated):
    def authenticate(self) -> None:
        token = self.bearer()
        for known in self.service.operator_tokens:
            if hmac.compare_digest(token.encode(), known.encode()):
                return
        raise Unauthorized("send the operator's token, or the metrics_token of the settings")

    @operation({200: Content({"text/plain": str})})
    async def get(self) -> None:
        """Metrics in Prometheus' text format, for who has the operator's token."""
        if self.service.metrics is None:
            raise NotFound("this broker keeps no metrics")
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(self.service.metrics.text())


class Contract(Authenticated):
    @operation({200: dict[str, Any]})
    async def get(self) -> None:
        """The API as an OpenAPI document: this one."""
        self.reply(self.settings["contract"])


def _sum(pools: Mapping[str, Pool]) -> Mapping[str, int]:
    total = Counter({field.name: 0 for field in fields(PoolStatus)})
    for pool in pools.values():
        total.update(asdict(pool.status()))
    return total
