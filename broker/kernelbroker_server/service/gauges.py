"""The current values of the metrics that are gauges; see `telemetry.metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from ..pool.runner import Pool
from .tenant_service import TenantServices


def gauges(
    pools: Mapping[str, Pool], tenants: TenantServices, memory: Mapping[str, int]
) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values by metric, and by the values of its labels.

    Args:
        memory: bytes that the sandboxes of each template use.
    """
    status = {name: pool.status() for name, pool in pools.items()}
    return {
        "sandboxes": {
            (name, state): getattr(each, f"{state}_containers")
            for name, each in status.items()
            for state in ("idle", "busy", "starting")
        },
        "sandbox_memory_bytes": {(name,): used for name, used in memory.items()},
        "sandbox_memory_limit_bytes": {
            (name,): each.total_containers * pools[name].spec.limits.memory
            for name, each in status.items()
        },
        "pool_waiters": {(name,): each.pending_requests for name, each in status.items()},
        "sessions": {(each.name,): len(each.sessions.list()) for each in tenants},
        "executions": {
            (each.name, state): getattr(each.queue, state)
            for each in tenants
            for state in ("waiting", "running")
        },
    }
