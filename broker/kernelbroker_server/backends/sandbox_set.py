"""The sandboxes of one backend. Each one is opened once and closed once, also if a caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from .base import LaunchError, Network, Sandbox
from .egress_socket import EgressSocket

log = logging.getLogger(__name__)


class ClosableSandbox(Sandbox):
    """A sandbox that its backend can close."""

    _egress_socket: EgressSocket | None = None
    """Its only way to a network of the kind `allowlist`."""

    async def cut_network(self) -> None:
        if self.spec.network is Network.OPEN:
            raise LaunchError(
                f"the network of the template {self.spec.template} is open, and cannot be taken away"
            )
        if self._egress_socket is not None:
            await self._egress_socket.close()

    @abstractmethod
    async def close(self) -> bool:
        """End the sandbox, remove all that belongs to it, and return whether everything is gone."""


S = TypeVar("S", bound=ClosableSandbox)


class SandboxSet(Generic[S]):
    """The sandboxes of one backend.

    Attributes:
        by_id: the sandboxes that are being opened, are open, or could not be removed yet.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, S] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}

    async def launch(self, sandbox: S, opening: Coroutine[Any, Any, None]) -> None:
        """Run `opening` to its end. If it fails, or the caller is cancelled, remove the sandbox.

        Raises:
            LaunchError: a sandbox has this id already.
            Exception: what `opening` raises.
        """
        if sandbox.id in self.by_id:
            opening.close()
            raise LaunchError(f"There is already a sandbox with the id {sandbox.id}")
        self.by_id[sandbox.id] = sandbox
        task = self._opening[sandbox.id] = asyncio.create_task(opening)
        try:
            await asyncio.shield(task)
        except BaseException:
            await self.remove(sandbox)
            raise

    def adopt(self, sandbox: S) -> None:
        """Add a sandbox that is open already."""
        self.by_id[sandbox.id] = sandbox

    async def remove(self, sandbox: Sandbox) -> None:
        """Remove a sandbox, as `Backend.remove` does."""
        if (own := self.by_id.get(sandbox.id)) is not sandbox or own is None:
            return
        if (removal := self._removals.get(own.id)) is None:
            removal = self._removals[own.id] = asyncio.create_task(self._remove(own))
        await asyncio.shield(removal)

    async def remove_all(self) -> None:
        await asyncio.gather(*(self.remove(sandbox) for sandbox in self.by_id.values()))

    async def removals(self) -> None:
        """Wait until all removals that have begun have ended."""
        while self._removals:
            await asyncio.wait(list(self._removals.values()))

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
        if gone:  # otherwise `remove_all` tries again
            del self.by_id[sandbox.id]
