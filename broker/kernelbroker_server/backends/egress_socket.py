"""The unix socket by which a sandbox with an allow list reaches the broker's proxy.

The sandbox connects, so the socket's name is visible inside. It is mounted read-only, so user code
cannot replace it.
"""

from __future__ import annotations

from pathlib import Path

from ..egress.host_names import InvalidHostName
from ..egress.proxy import Proxy
from .base import LaunchError, Network, SandboxSpec
from .sockets import listen


class EgressSocket:
    """One sandbox's socket, with the proxy listening on it.

    Attributes:
        path: of the socket on the host.
    """

    def __init__(
        self, proxy: Proxy, path: Path, owner: int | None, sandbox_id: str, spec: SandboxSpec
    ) -> None:
        """Make the socket and have the proxy listen on it.

        Args:
            owner: the user who may connect; the broker's own user if None.

        Raises:
            LaunchError: the template's `allow` has an invalid name, or the path is too long.
            OSError: the socket could not be made.
        """
        self.path = path
        try:
            self._listener = proxy.open(
                listen(path, owner),
                sandbox=sandbox_id,
                template=spec.template,
                allow=spec.allow if spec.network is Network.ALLOWLIST else (),
                upstreams=spec.upstreams,
            )
        except InvalidHostName as error:
            path.unlink()
            raise LaunchError(f"`allow` of the template {spec.template}: {error}") from error

    async def close(self) -> None:
        """Close the socket and its connections. Calling it twice does no harm."""
        await self._listener.close()
        self.path.unlink(missing_ok=True)
