"""Use cases of operators: sandboxes and pools of all tenants, draining, the audit log, the last hour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelbroker.protocol.errors import NotFound, Unavailable

from ..audit_reader import AuditFilter, read
from ..pool.runner import Pool
from ..pool.status import PoolSandbox
from ..sessions.session import Session
from ..telemetry.history import INTERVAL_S, History
from .tenant_service import TenantServices

_MEASURED_S = 2.0
_COST = 20
"""Measuring takes at most this part of the time, however many sandboxes there are."""


@dataclass(frozen=True, slots=True)
class SandboxState:
    """A sandbox with what it is used for.

    Attributes:
        kernel_status: `starting`, `idle`, `busy` or `dead`.
        memory: bytes; None if unknown.
        processor_time: seconds that it has used, of all cores; None if unknown.
        session, tenant: that have it; None if nobody has.
    """

    sandbox: PoolSandbox
    kernel_status: str
    memory: int | None
    processor_time: float | None
    session: str | None
    tenant: str | None


class Operations:
    """What operators may do.

    Args:
        audit_log: the file of the audit log; None if there is none.
    """

    def __init__(
        self,
        tenants: TenantServices,
        pools: Mapping[str, Pool],
        history: History,
        audit_log: Path | None,
    ) -> None:
        self.pools = pools
        self.history = history
        self._tenants = tenants
        self._audit_log = audit_log
        self._usage: dict[str, tuple[int | None, float | None]] = {}
        self._measure_at = float("-inf")

    async def sandboxes(self) -> Sequence[SandboxState]:
        """Return the sandboxes of all pools, the oldest of each pool first."""
        found = [each for pool in self.pools.values() for each in pool.sandboxes()]
        await self._measure(found)
        sessions = {
            session.sandbox_id: (service.name, session)
            for service in self._tenants
            for session in service.sessions.list()
        }
        states = []
        for each in found:
            tenant, session = sessions.get(each.sandbox_id, (None, None))
            memory, processor_time = self._usage.get(each.sandbox_id, (None, None))
            states.append(
                SandboxState(
                    each,
                    _kernel_status(each, session),
                    memory,
                    processor_time,
                    None if session is None else session.id,
                    tenant,
                )
            )
        return states

    def drain(self, template: str) -> None:
        """Lease no sandboxes of a template to new sessions, and remove the free ones. Raises NotFound."""
        self._pool(template).set_draining(True)

    def resume(self, template: str) -> None:
        """Take back `drain`. Raises NotFound."""
        self._pool(template).set_draining(False)

    async def audit(self, wanted: AuditFilter, limit: int) -> Sequence[dict[str, Any]]:
        """Return records of the audit log, the latest first.

        Raises:
            NotFound: there is no audit log.
            Unavailable: it cannot be read.
        """
        if self._audit_log is None:
            raise NotFound("this broker writes no audit log: set audit_log to a path")
        try:
            return await asyncio.to_thread(read, self._audit_log, wanted, limit)
        except OSError as exc:
            raise Unavailable(f"the audit log cannot be read: {exc.strerror}") from exc

    async def keep_history(self) -> None:
        """Add points to the history until cancelled. Run under the supervisor."""
        while True:
            self.history.add(await self._gauges())
            await asyncio.sleep(INTERVAL_S)

    def _pool(self, template: str) -> Pool:
        if (pool := self.pools.get(template)) is None:
            raise NotFound(f"no template {template!r}; there are: {', '.join(sorted(self.pools))}")
        return pool

    async def _measure(self, sandboxes: Sequence[PoolSandbox]) -> None:
        """Read the memory and the processor time of the sandboxes, if the last readings are old."""
        now = time.monotonic()
        if now < self._measure_at:
            return
        self._measure_at = now + _MEASURED_S
        warm = [each for each in sandboxes if each.sandbox is not None]
        used = await asyncio.gather(*(_usage(each) for each in warm))
        self._usage = {each.sandbox_id: value for each, value in zip(warm, used, strict=True)}
        took = time.monotonic() - now
        self._measure_at = now + max(_MEASURED_S, took * _COST)

    async def _gauges(self) -> Mapping[str, float | None]:
        status = [pool.status() for pool in self.pools.values()]
        await self._measure([each for pool in self.pools.values() for each in pool.sandboxes()])
        known = [memory for memory, _ in self._usage.values() if memory is not None]
        return {
            "sessions": self._tenants.open_sessions,
            "running": sum(each.queue.running for each in self._tenants),
            "waiting": sum(each.queue.waiting for each in self._tenants),
            "leased": sum(each.busy_containers for each in status),
            "idle": sum(each.idle_containers for each in status),
            "starting": sum(each.starting_containers for each in status),
            "memory": sum(known) if known else None,
        }


async def _usage(each: PoolSandbox) -> tuple[int | None, float | None]:
    assert each.sandbox is not None
    return await each.sandbox.memory(), await each.sandbox.processor_time()


def _kernel_status(each: PoolSandbox, session: Session | None) -> str:
    if each.sandbox is None:
        return "starting"
    if each.sandbox.ended.done():
        return "dead"
    return "busy" if session is not None and session.state == "busy" else "idle"
