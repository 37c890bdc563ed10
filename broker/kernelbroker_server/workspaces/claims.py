"""Who has which workspace in this broker: sessions, and requests for files of workspaces that none has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from .layout import in_use

Key: TypeAlias = tuple[str, str]
"""Tenant and name."""


@dataclass(slots=True)
class Claim:
    """A claim on a workspace, from before it is locked until `free` is resolved.

    Attributes:
        session_id: empty if it is for requests for files.
        leaving: who claims the workspace now waits for it, instead of a refusal.
    """

    key: Key
    session_id: str
    free: asyncio.Future[None]
    leaving: bool = False
    released: bool = False
    is_wanted: bool = False
    """A session waits for it."""


class Claims(dict[Key, Claim]):
    """The claims of one store, by key."""

    async def enter(self, key: Key, session_id: str, timeout: float) -> Claim:
        """Claim a workspace, after an earlier claim that is ending. Raises Conflict."""
        try:
            async with asyncio.timeout(timeout):
                while (earlier := self.get(key)) is not None and (
                    earlier.leaving or earlier.session_id == session_id
                ):
                    earlier.is_wanted = True
                    await asyncio.wait([earlier.free])
        except TimeoutError:
            pass
        if earlier is not None:
            raise in_use(key[1], earlier.session_id)
        return self.add(key, session_id)

    def add(self, key: Key, session_id: str) -> Claim:
        """Claim a workspace that is free."""
        assert key not in self
        claim = Claim(key, session_id, asyncio.get_running_loop().create_future())
        self[key] = claim
        return claim

    def remove(self, claim: Claim) -> None:
        del self[claim.key]
        claim.free.set_result(None)
