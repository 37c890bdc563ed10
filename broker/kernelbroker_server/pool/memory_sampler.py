"""Measures the memory of all sandboxes from time to time, for the metrics, which are read at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from .runner import Pool

_INTERVAL_S = 15.0


class MemorySampler:
    """The memory of each pool's sandboxes.

    Attributes:
        used: bytes at the last measurement, by template.
    """

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self.used: dict[str, int] = dict.fromkeys(pools, 0)
        self._pools = pools

    async def run(self) -> None:
        """Measure until cancelled. Run under the supervisor."""
        while True:
            for name, pool in self._pools.items():
                self.used[name] = await pool.memory()
            await asyncio.sleep(_INTERVAL_S)
