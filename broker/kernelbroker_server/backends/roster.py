"""Which sandboxes a backend has: each is opened once and closed once, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from .base import LaunchError, Sandbox

log = logging.getLogger(__name__)


class OwnSandbox(Sandbox):
    """A sandbox that can be closed by who opened it."""

    @abstractmethod
    async def close(self) -> bool:
        """End it and remove all that belongs to it; tells whether everything is gone."""


S = TypeVar("S", bound=OwnSandbox)


class Roster(Generic[S]):
    """
    Attributes:
        sandboxes: those that are being opened, are open, or could not be removed yet, by id.
    """

    def __init__(self) -> None:
        self.sandboxes: dict[str, S] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}

    async def launch(self, sandbox: S, opening: Coroutine[Any, Any, None]) -> None:
        """Carry out `opening` undisturbed; if it fails, or the caller is cancelled, remove the sandbox.

        Raises LaunchError, and what `opening` raises.
        """
        if sandbox.id in self.sandboxes:
            opening.close()
            raise LaunchError(f"There is a sandbox {sandbox.id} already")
        self.sandboxes[sandbox.id] = sandbox
        task = self._opening[sandbox.id] = asyncio.create_task(opening)
        try:
            await asyncio.shield(task)
        except BaseException:
            await self.remove(sandbox)
            raise

    async def remove(self, sandbox: Sandbox) -> None:
        """As `Backend.remove`."""
        if (own := self.sandboxes.get(sandbox.id)) is not sandbox or own is None:
            return
        if (removal := self._removals.get(own.id)) is None:
            removal = self._removals[own.id] = asyncio.create_task(self._remove(own))
        await asyncio.shield(removal)

    async def remove_all(self) -> None:
        await asyncio.gather(*(self.remove(sandbox) for sandbox in self.sandboxes.values()))

    async def _remove(self, sandbox: S) -> None:
        if (opening := self._opening.pop(sandbox.id, None)) is not None:
            await asyncio.wait([opening])
            opening.exception()  # `launch` has raised it, or was cancelled
        gone = False
        try:
            gone = await sandbox.close()
        except Exception:
            log.exception("Sandbox %s could not be removed", sandbox.id)
        del self._removals[sandbox.id]
        if gone:  # else `remove_all` tries again
            del self.sandboxes[sandbox.id]
