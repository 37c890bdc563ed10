"""The network of containers with `network = "open"`: a bridge that the broker creates when it is needed.

Containers on it reach every network that the engine routes to, but not each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from .engine import Engine

_OPTIONS = {"com.docker.network.bridge.enable_icc": "false"}


class OpenNetwork:
    """Provides the network.

    Args:
        given: the name of an existing network to use; None to create one.
        own: the name of the network that is created.
    """

    def __init__(
        self, engine: Engine, given: str | None, own: str, labels: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._given = given
        self._own = own
        self._labels = labels
        self._lock = asyncio.Lock()
        self._used = False

    async def name(self) -> str:
        """Return the network's name. Creates the network if necessary. Raises EngineError."""
        if self._given is not None:
            return self._given
        async with self._lock:
            self._used = True
            if await self._engine.network(self._own) is None:  # or it was removed meanwhile
                options = {"driver": "bridge", "options": _OPTIONS, "labels": dict(self._labels)}
                await self._engine.create_network(self._own, options)
        return self._own

    def adopt(self, name: str) -> None:
        """Take over the network of this name, if an earlier broker of the same id has created it."""
        self._used = self._used or name == self._own

    async def remove(self) -> None:
        """Remove the created network, after the last container. Raises EngineError."""
        if self._used:
            await self._engine.remove_network(self._own)
