"""The network of containers with `network = "open"`: a bridge of the broker's own, made when needed.

Containers on it reach whatever the engine routes, and not each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from .engine import Engine

_OPTIONS = {"com.docker.network.bridge.enable_icc": "false"}


class OpenNetwork:
    """
    Args:
        given: the name of a network to use in place of one of our own.
        own: the name of our own.
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
        """What a container is to be attached to. Raises EngineError."""
        if self._given is not None:
            return self._given
        async with self._lock:
            self._used = True
            if not await self._engine.has_network(self._own):  # or no more: somebody tidied up
                options = {"driver": "bridge", "options": _OPTIONS, "labels": dict(self._labels)}
                await self._engine.create_network(self._own, options)
        return self._own

    async def remove(self) -> None:
        """After the last container. Raises EngineError."""
        if self._used:
            await self._engine.remove_network(self._own)
