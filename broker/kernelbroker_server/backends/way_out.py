"""The way out of a sandbox with an allow list: a socket in it, behind which the broker's proxy listens.

The sandbox is the one that connects, so its name may be seen inside; it is mounted read-only, where
nobody can put another in its place.
"""

from __future__ import annotations

from pathlib import Path

from ..egress.names import BadName
from ..egress.proxy import Proxy
from .base import LaunchError, SandboxSpec
from .sockets import listen


class WayOut:
    """
    Attributes:
        path: the socket's on the host.
    """

    def __init__(
        self, proxy: Proxy, path: Path, owner: int | None, sandbox_id: str, spec: SandboxSpec
    ) -> None:
        """`owner` is the user who may connect, if not the broker's. Raises LaunchError, OSError."""
        self.path = path
        try:
            self._door = proxy.open(
                listen(path, owner), sandbox=sandbox_id, template=spec.template, allow=spec.allow
            )
        except BadName as error:
            path.unlink()
            raise LaunchError(f"`allow` of the template {spec.template}: {error}") from error

    async def close(self) -> None:
        """End what is under way; calling it twice does no harm."""
        await self._door.close()
        self.path.unlink(missing_ok=True)
