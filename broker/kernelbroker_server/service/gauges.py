"""The current values of the metrics that are gauges; see `telemetry.metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from ..pool.runner import Pool
from .tenant_service import TenantServices


def gauges(
    pools: Mapping[str, Pool], tenants: TenantServices
) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values by metric, and by the values of its labels."""
    status = {name: pool.status() for name, pool in pools.items()}
    return {
        "sandboxes": {
            (name, state): getattr(each, f"{state}_containers")
            for name, each in status.items()
            for state in ("idle", "busy", "starting")
        },
        "pool_waiters": {(name,): each.pending_requests for name, each in status.items()},
        "sessions": {(each.name,): len(each.sessions.list()) for each in tenants},
        "executions": {
            (each.name, state): getattr(each.queue, state)
            for each in tenants
            for state in ("waiting", "running")
        },
    }
