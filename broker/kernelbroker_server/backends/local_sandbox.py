"""One sandbox of the `local` backend: what belongs to it, from its directory to its last process.

The broker makes the listening socket itself, in a directory that no jail sees, and hands it to the
gateway by inheritance: user code can neither remove nor replace it, and to connect is never too
early.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass

from ..egress.proxy import Proxy
from ..kernels.endpoint import UnixEndpoint
from . import bubblewrap, process, procfs
from .base import EndCause, Isolation, LaunchError, Limits, Network, SandboxEnd, SandboxSpec
from .cgroups import Cgroups
from .directories import Directories, remove_tree
from .ends import end_of
from .host import Host
from .inside import max_file_bytes
from .roster import OwnSandbox
from .sockets import listen
from .way_out import WayOut

log = logging.getLogger(__name__)

_KILL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Ground:
    """What all sandboxes of one broker stand on."""

    host: Host
    directories: Directories
    cgroups: Cgroups
    isolation: Isolation
    proxy: Proxy


class LocalSandbox(OwnSandbox):
    """`open` it once, then `close` it until that says that everything is gone."""

    endpoint: UnixEndpoint

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, ground: Ground, host_uid: int | None
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.host_uid = host_uid
        self.endpoint = UnixEndpoint(ground.directories.run / f"{sandbox_id}.sock")
        self.ended = asyncio.get_running_loop().create_future()
        self._ground = ground
        self._directory = ground.directories.sandboxes / sandbox_id
        self.workspace = self._directory / "workspace"
        self._cgroup = ground.cgroups.of(sandbox_id)
        self._way_out: WayOut | None = None
        self._running: bubblewrap.Jail | process.Process | None = None
        self._over_memory = False
        self.exit_status: int | None = None
        """The gateway's, once it has ended; None if its jail was never set up."""

    @property
    def leader(self) -> int | None:
        """The pid whose family is all that runs in the sandbox, while something may."""
        return None if self._running is None or self.ended.done() else self._running.leader

    async def memory(self) -> int | None:
        if (leader := self.leader) is None:
            return None
        with contextlib.suppress(OSError):
            if (used := self._cgroup.memory()) is not None:
                return used
        return await asyncio.to_thread(procfs.memory_of, leader)

    async def open(self, command: Sequence[str]) -> None:
        """Start it. Not to be cancelled; it is short. Whatever it raises, `close` is called next.

        Raises:
            LaunchError
        """
        ground = self._ground
        try:
            self._make_directories()
            if self.spec.network is Network.ALLOWLIST:
                path = ground.directories.run / f"{self.id}.out"
                self._way_out = WayOut(ground.proxy, path, self.host_uid, self.id, self.spec)
            with listen(self.endpoint.path) as listener:
                self._cgroup.create(self.spec.limits)
                if ground.isolation is Isolation.BUBBLEWRAP:
                    self._running = await bubblewrap.start(
                        ground.host,
                        self.spec,
                        command=command,
                        etc=ground.directories.run / "etc",
                        workspace=self.workspace,
                        way_out=None if self._way_out is None else self._way_out.path,
                        listener=listener.fileno(),
                        host_uid=self.host_uid,
                        place=self._place,
                    )
                else:
                    self._running = await process.start(
                        ground.host,
                        self.spec,
                        command=command,
                        library=ground.directories.run / "lib",
                        directory=self._directory,
                        listener=listener.fileno(),
                        place=self._place,
                    )
        except OSError as error:  # TimeoutError is one
            raise LaunchError(f"The sandbox could not be started: {error!r}") from error
        self._running.child.exited.add_done_callback(self._on_exit)

    async def close(self) -> bool:
        """End it and remove all that belongs to it; tells whether everything is gone."""
        if self._running is not None:
            self._running.kill()
            try:
                await asyncio.wait_for(self._running.gone(), _KILL_TIMEOUT_S)
            except TimeoutError:
                log.error("Sandbox %s does not die; its remains are kept for now", self.id)
                return False
            self._running.close()
            self._running = None
        elif not self.ended.done():
            self.ended.set_result(SandboxEnd(EndCause.SANDBOX_LOST, "it was never started"))
        self.endpoint.path.unlink(missing_ok=True)
        if self._way_out is not None:
            await self._way_out.close()
        await self._cgroup.remove()
        return await remove_tree(self._directory)

    def kill_over_memory(self) -> None:
        """The watchdog's verdict."""
        if self._running is not None:
            self._over_memory = True
            self._running.kill()

    def output_tail(self) -> str:
        return "" if self._running is None else self._running.child.output_tail()

    def _make_directories(self) -> None:
        self._directory.mkdir(mode=0o700)
        self.workspace.mkdir(mode=0o700)
        if self.spec.shared_data is not None:
            (self.workspace / "shared").mkdir()
        if self._ground.isolation is Isolation.PROCESS:
            (self._directory / process.HOME).mkdir(mode=0o700)
        if self.host_uid is not None:
            os.chown(self.workspace, self.host_uid, self.host_uid)

    def _place(self, pid: int) -> None:
        """Put the sandbox's first process under its limits, which all others inherit."""
        self._cgroup.add(pid)
        for kind, value in rlimits(self.spec.limits, self._ground.isolation).items():
            _, hard = resource.prlimit(pid, kind)
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.prlimit(pid, kind, (value, value))

    def _on_exit(self, _exited: object) -> None:
        running = self._running
        assert running is not None
        out_of_memory = self._over_memory
        with contextlib.suppress(OSError):
            out_of_memory = out_of_memory or self._cgroup.oom_kills() > 0
        self.exit_status = running.exit_status()
        output = running.child.output_tail()
        self.ended.set_result(end_of(self.exit_status, self.spec.limits, out_of_memory, output))


def rlimits(limits: Limits, isolation: Isolation) -> dict[int, int]:
    """Values by `resource.RLIMIT_*`; not of address space, of which numpy reserves far too much."""
    values = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: max_file_bytes(limits),
        resource.RLIMIT_NOFILE: limits.open_files,
    }
    if isolation is Isolation.BUBBLEWRAP:  # elsewhere it would count all that its user runs
        values[resource.RLIMIT_NPROC] = limits.processes
    return values
