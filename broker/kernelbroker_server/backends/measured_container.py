"""What a container uses, as the engine has measured it."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from .cgroups import memory_in_use
from .engine import EngineError
from .sandbox_set import ClosableSandbox

log = logging.getLogger(__name__)

_NS = 1e9


class MeasuredContainer(ClosableSandbox):
    """The base of `DockerSandbox`."""

    @abstractmethod
    async def stats(self) -> Mapping[str, Any]:
        """Return the engine's statistics of the container. Raises EngineError."""

    async def memory(self) -> int | None:
        stats = (await self._stats()).get("memory_stats", {})
        return memory_in_use(stats["usage"], stats["stats"]) if "stats" in stats else None

    async def processor_time(self) -> float | None:
        used = (await self._stats()).get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage")
        return None if used is None else used / _NS

    async def _stats(self) -> Mapping[str, Any]:
        try:
            return await self.stats()
        except EngineError as error:
            log.debug("What sandbox %s uses is unknown: %s", self.id, error)
            return {}
