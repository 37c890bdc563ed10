"""The broker's condition: health and readiness, the pools, metrics, and the OpenAPI document."""

from __future__ import annotations

import hmac
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from kernelbroker.protocol.errors import NotFound, Unauthorized, Unavailable

from ..pool.runner import Pool
from ..pool.status import PoolStatus
from ..telemetry.metrics import CONTENT_TYPE
from .base import ApiHandler, Authenticated
from .credentials import bearer_token
from .openapi import Content, operation


class Pools(ApiHandler):
    @operation({200: dict[str, Any]})
    async def get(self) -> None:
        """Count the sandboxes of the pools that the tenant may use: in total, and by template."""
        pools = self.tenant.pools
        each = {
            name: asdict(pool.status()) | asdict(pool.details()) for name, pool in pools.items()
        }
        self.reply({**_sum(pools), "templates": each})


class Health(Authenticated):
    requires_token = False

    @operation({200: dict[str, Any]}, open=True)
    async def get(self) -> None:
        """Report the broker's condition: `ok`, or `degraded` with the reasons.

        The status is 200 in either case. `isolation` and `backend` are those of the template `default`,
        `backends` has all by name. `routing` tells where cells run with the template `auto`, `browser`
        which templates have a browser, or what is missing there. `uptime` is in seconds. `tasks` are
        background tasks that failed lately and were restarted.
        """
        service = self.service
        failures = _launch_failures(service.pools)
        failing = service.supervisor.failing()
        reasons = [f"template {name}: {reason}" for name, reason in failures.items()]
        reasons += service.store.problems()
        reasons += service.tenants.workspaces.problems()
        reasons += [f"background task {task.name}: restarted after an error" for task in failing]
        self.reply(
            {
                "status": "degraded" if reasons else "ok",
                "reasons": reasons,
                "version": service.version,
                "uptime": round(time.monotonic() - service.started_at, 1),
                "isolation": service.backends.isolation,
                "backend": service.backends.describe(),
                "backends": service.backends.describe_all(),
                "routing": service.tenants.routes.describe(),
                "browser": {
                    "templates": {
                        name: pool.backend.browser_problem or "ok"
                        for name, pool in service.pools.items()
                        if pool.spec.browser
                    },
                    "external": service.tenants.external_browsers.is_there,
                },
                "pool": _sum(service.pools),
                "last_launch_failure": next(iter(failures.values()), None),
                "sessions": service.tenants.open_sessions,
                "asleep": service.tenants.asleep_sessions,
                "tasks": [{"name": task.name, "failures": task.failures} for task in failing],
            }
        )


class Live(Health):
    @operation({200: dict[str, Any]}, open=True)
    async def get(self) -> None:
        """Report that the broker runs. Restart it if this fails."""
        self.reply({"status": "ok"})


class Ready(Health):
    @operation({200: dict[str, Any]}, open=True)
    async def get(self) -> None:
        """Report whether sessions can be opened. Send clients elsewhere while this fails."""
        if self.service.tenants.stopping:
            raise Unavailable("the broker is shutting down", retry_after=10)
        if not any(_can_lease(pool) for pool in self.service.pools.values()):
            failures = _launch_failures(self.service.pools)
            why = next(iter(failures.values()), "they are being launched")
            raise Unavailable(f"no sandbox is available yet: {why}", retry_after=1)
        self.reply({"status": "ok"})


class MetricsText(Authenticated):
    def authenticate(self) -> None:
        token = bearer_token(self.request.headers)
        for known in self.service.operator_tokens:
            if hmac.compare_digest(token.encode(), known.encode()):
                return
        raise Unauthorized("send the operator's token, or the metrics_token of the settings")

    @operation({200: Content({"text/plain": str})})
    async def get(self) -> None:
        """Metrics in Prometheus' text format. Needs the operator's token."""
        if self.service.metrics is None:
            raise NotFound("this broker keeps no metrics")
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(self.service.metrics.text())


class OpenApiDocument(Authenticated):
    @operation({200: dict[str, Any]})
    async def get(self) -> None:
        """Get this OpenAPI document."""
        self.reply(self.settings["openapi"]())


def _launch_failures(pools: Mapping[str, Pool]) -> dict[str, str]:
    """Return why launches fail, by template."""
    return {name: pool.last_failure for name, pool in pools.items() if pool.last_failure}


def _can_lease(pool: Pool) -> bool:
    """Return whether a new session would get a sandbox.

    A pool without spare sandboxes must be tried again after a failure, or it would never recover.
    """
    if pool.last_failure and not pool.status().idle_containers:
        details = pool.details()
        return not details.spare_containers and not details.back_off_s
    return pool.ready


def _sum(pools: Mapping[str, Pool]) -> Mapping[str, int]:
    total = Counter({field.name: 0 for field in fields(PoolStatus)})
    for pool in pools.values():
        total.update(asdict(pool.status()))
    return total
