"""What sandboxes use, as far as the broker measures it."""

from __future__ import annotations

import math
import time
from typing import Any

from ..api.descriptions import utc_time
from ..sessions.session import Session
from .sandboxes import SandboxesHandler


class Metrics(SandboxesHandler):
    """`GET /sandboxes/ID/metrics`: the present state. The broker keeps no history of it."""

    async def get(self, sandbox_id: str) -> None:
        measured = await _measure(await self.session(sandbox_id))
        self.reply([] if measured is None else [measured])


class AllMetrics(SandboxesHandler):
    """`GET /sandboxes/metrics?sandbox_ids=ID,ID`."""

    async def get(self) -> None:
        wanted = self.get_query_argument("sandbox_ids", "").split(",")
        found = [each for each in self.tenant.sessions.list() if each.id in wanted]
        measured = {each.id: await _measure(each) for each in found}
        self.reply({"sandboxes": {name: value for name, value in measured.items() if value}})


async def _measure(session: Session) -> dict[str, Any] | None:
    """Return the present use of a sandbox; None if it sleeps or cannot be measured."""
    memory, files = await session.usage()
    if memory is None or files is None:
        return None
    limits, now = session.spec.limits, time.time()
    return {
        "timestamp": utc_time(now),
        "timestampUnix": int(now),
        "cpuCount": math.ceil(limits.cpus),
        "cpuUsedPct": 0.0,  # not measured
        "memUsed": memory,
        "memTotal": int(limits.memory),
        "memCache": 0,
        "diskUsed": files.size,
        "diskTotal": int(limits.workspace_size),
    }
