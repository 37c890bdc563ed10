"""A jail whose gateway is forked from a fork server.

Bubblewrap makes the jail as always, with a small holder in it. The server forks the gateway into the jail;
see `fork_server.py`. The jail does not end with the gateway, so its leader is killed then. If the leader
dies, the gateway dies with all processes of the jail.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from . import bubblewrap
from .base import LaunchError, SandboxSpec
from .fork_server import ForkedGateway, ForkServer
from .host import Host
from .mounted_project import MountedProject

HOLDER = ("/bin/sh", "-c", "echo holder >/proc/$$/comm; echo; read _")
"""Its line of output tells that the mounts are made. It ends when its input ends, which the broker holds.

It has a name of its own, since user code counts and ends processes by their names.
"""
_HOLDER_TIMEOUT_S = 10.0
_KILLED = 137


class ForkedJail:
    """A running jail with a forked gateway. It has the methods of `bubblewrap.Jail`.

    Attributes:
        child: the broker's child of bubblewrap. Its output has that of the gateway.
        leader: the host's pid of the first process in the jail.
        roots: the processes that all others of the jail descend from.
    """

    def __init__(self, jail: bubblewrap.Jail, gateway: ForkedGateway, server: ForkServer) -> None:
        self.child = jail.child
        self.leader = jail.leader
        self.roots: tuple[int, ...] = (jail.leader, gateway.pid)
        self._jail = jail
        self._gateway = gateway
        self._status: int | None = None
        self._ending = asyncio.create_task(self._end_with_gateway(server), name="forked gateway")

    def exit_status(self) -> int:
        """The gateway's exit status, once `child.exited` is done."""
        return _KILLED if self._status is None else self._status

    def kill(self) -> None:
        self._jail.kill()

    async def gone(self) -> None:
        """Wait until all processes of the jail have ended."""
        await asyncio.shield(self._ending)
        await self._jail.gone()

    def close(self) -> None:
        """Close the descriptors. Call it once, after `gone`."""
        self._gateway.close()
        self._jail.close()

    async def _end_with_gateway(self, server: ForkServer) -> None:
        self._status = await self._gateway.ended(server)
        self._jail.kill()


async def start(
    host: Host,
    spec: SandboxSpec,
    server: ForkServer,
    *,
    etc: Path,
    workspace: Path,
    egress_socket: Path | None,
    project: MountedProject | None = None,
    listener: int,
    host_uid: int | None,
    place: Callable[[int], None],
) -> ForkedJail:
    """Start a jail and fork a gateway into it. The arguments are those of `bubblewrap.start`.

    Args:
        place: called with the pids of the leader and of the gateway, before they run anything.

    Raises:
        ForkServerError: the server failed; a jail can be started without it. No process is left.
        LaunchError, OSError: no process is left.
    """
    jail = await bubblewrap.start(
        host,
        spec,
        program=HOLDER,
        holds_input=True,
        etc=etc,
        workspace=workspace,
        egress_socket=egress_socket,
        project=project,
        user_namespace=server.user_namespace,
        host_uid=host_uid,
        place=place,
    )
    try:
        async with asyncio.timeout(_HOLDER_TIMEOUT_S):
            await jail.child.first_output()
        if jail.child.exited.done():
            raise LaunchError(f"the jail could not be set up: {jail.child.output_tail()}")
        output = jail.child.open_output()
        try:
            gateway = await server.fork(jail.leader_fd, listener, output)
        finally:
            os.close(output)
        try:
            place(gateway.pid)
            gateway.open_gate()
        except BaseException:
            gateway.close()
            raise
        return ForkedJail(jail, gateway, server)
    except BaseException:
        jail.kill()
        await jail.gone()
        jail.close()
        raise
