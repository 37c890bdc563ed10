"""One sandbox of the `local` backend: its directory, its socket, its limits and its processes.

The broker makes the listening socket in a directory that is in no jail, and the gateway inherits it. User
code can therefore neither remove nor replace the socket. Clients can connect before the gateway is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import resource
from collections.abc import Sequence
from typing import TypeAlias

from ..egress.proxy import Proxy
from ..kernels.endpoint import UnixEndpoint
from . import bubblewrap, forked_jail, jail, process, procfs, sandbox_record
from .adopted_jail import AdoptedJail
from .base import (
    Confirm,
    EndCause,
    Isolation,
    LaunchError,
    Limits,
    SandboxEnd,
    SandboxSpec,
    Usage,
    owns_all,
)
from .cgroups import Cgroups
from .checkpoint_jail import CheckpointJail
from .directories import Directories, remove_tree
from .egress_socket import EgressSocket
from .exit_reason import end_of
from .fork_server import ForkServer, ForkServerError
from .host import Host
from .mounted_project import MountedProject
from .sandbox_layout import gateway_argv, make_mount_points, max_file_bytes
from .sandbox_record import ProcessId, SandboxRecord
from .sandbox_set import ClosableSandbox
from .sockets import listen
from .usage import UsageMeter

log = logging.getLogger(__name__)

_KILL_TIMEOUT_S = 10.0

Running: TypeAlias = (
    bubblewrap.Jail | forked_jail.ForkedJail | CheckpointJail | process.Process | AdoptedJail
)


@dataclasses.dataclass(frozen=True, slots=True)
class LocalContext:
    """The objects that all sandboxes of a local backend share."""

    host: Host
    directories: Directories
    cgroups: Cgroups
    isolation: Isolation
    proxy: Proxy
    meter: UsageMeter
    epoch: int = 0
    """Of the broker that has taken the directories over; see `Backend.take`."""
    confirm: Confirm = owns_all


class LocalSandbox(ClosableSandbox):
    """Call `open` once, then `close` until it returns True."""

    endpoint: UnixEndpoint

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, context: LocalContext, host_uid: int | None
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.limits = spec.limits
        self.host_uid = host_uid
        self.endpoint = UnixEndpoint(context.directories.run / f"{sandbox_id}.sock", context.epoch)
        self.ended = asyncio.get_running_loop().create_future()
        self._context = context
        self._directory = context.directories.sandboxes / sandbox_id
        self.workspace = self._directory / "workspace"
        self._cgroup = context.cgroups.of(sandbox_id)
        self._egress_socket: EgressSocket | None = None
        self._project: MountedProject | None = None
        self._project_target = context.directories.run / f"{sandbox_id}.project"
        self._running: Running | None = None
        self._ending: asyncio.Task[bool] | None = None
        self._over_memory = False
        self._record: SandboxRecord | None = None
        self.exit_status: int | None = None  # of the gateway; None until it has ended

    @property
    def leader(self) -> int | None:
        """The pid of the sandbox's first process; None before its start and after its end."""
        return None if self._running is None or self.ended.done() else self._running.leader

    @property
    def roots(self) -> tuple[int, ...]:
        """The pids that all its processes descend from; empty before its start and after its end."""
        return () if self._running is None or self.ended.done() else self._running.roots

    @property
    def forked(self) -> bool:
        """Whether its gateway was forked from a fork server."""
        return isinstance(self._running, forked_jail.ForkedJail)

    async def memory(self) -> int | None:
        if not (roots := self.roots):
            return None
        with contextlib.suppress(OSError):
            if (used := self._cgroup.memory()) is not None:
                return used
        return await asyncio.to_thread(procfs.memory_of, *roots)

    async def processor_time(self) -> float | None:
        if not (roots := self.roots):
            return None
        return await asyncio.to_thread(procfs.processor_time_of, *roots)

    def ran_out_of_memory(self) -> bool:
        with contextlib.suppress(OSError):
            return self._over_memory or self._cgroup.oom_kills() > 0
        return self._over_memory

    async def change_limits(self, memory: int, cpus: float) -> None:
        own = self.spec.limits
        limits = dataclasses.replace(own, memory=min(memory, own.memory), cpus=min(cpus, own.cpus))
        try:
            self._cgroup.change(limits)
        except OSError as error:
            raise LaunchError(f"The sandbox cannot be limited: {error}") from error
        self.limits = limits

    async def usage(self, max_files: int) -> Usage:
        return await self._context.meter.measure(self.workspace, max_files)

    async def kill(self) -> None:
        if not await self._end_all():
            log.error("Sandbox %s does not end", self.id)

    async def open(self, command: Sequence[str], server: ForkServer | None = None) -> None:
        """Start the sandbox. Do not cancel this; it is short. Call `close` if it fails.

        Args:
            command: the arguments of the kernels' Python, before `--fd N`.
            server: forks the gateway. If it fails, or is None, the gateway is started.

        Raises:
            LaunchError
        """
        context = self._context
        try:
            self._make_directories()
            if self.spec.uses_proxy:
                path = context.directories.run / f"{self.id}.out"
                self._egress_socket = EgressSocket(
                    context.proxy, path, self.host_uid, self.id, self.spec
                )
            if self.spec.project is not None:
                target = self._project_target
                self._project = MountedProject.of(self.spec.project, target, self.host_uid)
            with listen(self.endpoint.path) as listener:
                self._cgroup.create(self.spec.limits)
                if context.isolation is Isolation.BUBBLEWRAP:
                    self._running = await self._start_jail(command, listener.fileno(), server)
                else:
                    self._running = await process.start(
                        context.host,
                        self.spec,
                        command=command,
                        library=context.directories.run / "lib",
                        directory=self._directory,
                        listener=listener.fileno(),
                        place=self._place,
                    )
        except OSError as error:  # TimeoutError is one
            raise LaunchError(f"The sandbox could not be started: {error!r}") from error
        finally:
            if self._project is not None:
                self._project.close()
        self._running.child.exited.add_done_callback(self._on_exit)
        self._write_record()

    def adopt(self, record: SandboxRecord) -> None:
        """Go on with a sandbox of an earlier broker, instead of `open`. Raises OSError if it has ended."""
        self._running = self._find_jail(record)
        self._running.child.exited.add_done_callback(self._on_exit)
        self._record = record

    def _find_jail(self, record: SandboxRecord) -> AdoptedJail | CheckpointJail:
        if record.leader is None:
            raise ProcessLookupError("its process is unknown")
        return AdoptedJail(record.leader, record.gateway)

    def leave(self) -> None:
        """Close what this broker has of a sandbox that goes on without it."""

    def remember(
        self, *, kernel_id: str | None = None, session: str | None = None, is_ready: bool = False
    ) -> None:
        if self._record is not None:
            self._record.remember(self._directory, kernel_id, session, is_ready)

    def _write_record(self) -> None:
        """Write what the next broker needs, if the sandbox may live without this one."""
        running = self._running
        assert running is not None
        if not self.spec.orphan_grace:
            return
        leader, *gateway = running.roots
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has ended already
            self._record = SandboxRecord(
                boot=sandbox_record.boot_id(),
                spec=sandbox_record.digest(self.spec),
                leader=ProcessId.of(leader),
                gateway=ProcessId.of(gateway[0]) if gateway else None,
                host_uid=self.host_uid,
                grace=self.spec.orphan_grace,
            )
            self.remember()

    async def _start_jail(
        self, command: Sequence[str], listener: int, server: ForkServer | None
    ) -> bubblewrap.Jail | forked_jail.ForkedJail | CheckpointJail:
        """Raises LaunchError or OSError; no process is left then."""
        context = self._context
        host, etc = context.host, context.directories.run / "etc"
        egress_socket = None if self._egress_socket is None else self._egress_socket.path
        if server is not None:
            try:
                return await forked_jail.start(
                    host,
                    self.spec,
                    server,
                    etc=etc,
                    workspace=self.workspace,
                    egress_socket=egress_socket,
                    project=self._project,
                    listener=listener,
                    host_uid=self.host_uid,
                    place=self._place,
                )
            except ForkServerError as error:
                log.warning("The sandbox %s is started without its fork server: %s", self.id, error)
        argv = gateway_argv(jail.python_inside(host), command, ("--fd", str(listener)), self.spec)
        return await bubblewrap.start(
            host,
            self.spec,
            program=argv,
            etc=etc,
            workspace=self.workspace,
            egress_socket=egress_socket,
            project=self._project,
            pass_fds=[listener],
            host_uid=self.host_uid,
            place=self._place,
        )

    async def close(self) -> bool:
        """End the sandbox and remove everything that belongs to it. Returns whether all is gone."""
        if not await self._end_all():
            log.error("Sandbox %s does not end; its files are kept for now", self.id)
            return False
        if self._running is not None:
            self._running.close()
            self._running = None
        elif not self.ended.done():
            self.ended.set_result(SandboxEnd(EndCause.SANDBOX_LOST, "it was never started"))
        self.endpoint.path.unlink(missing_ok=True)
        if self._egress_socket is not None:
            await self._egress_socket.close()
        await self._cgroup.remove()
        with contextlib.suppress(OSError):
            self._project_target.rmdir()
        return await remove_tree(self._directory)

    async def _end_all(self) -> bool:
        """Kill all processes. Returns whether they have ended."""
        if self._running is None:
            return True
        if self._ending is None:  # the event loop takes one reader for a descriptor
            self._ending = asyncio.create_task(self._wait_until_gone(self._running))
        return await asyncio.shield(self._ending)

    async def _wait_until_gone(self, running: Running) -> bool:
        await self._context.confirm()
        running.kill()
        try:
            await asyncio.wait_for(running.gone(), _KILL_TIMEOUT_S)
        except TimeoutError:
            self._ending = None  # the next call tries again
            return False
        return True

    def kill_over_memory(self) -> None:
        """Kill the sandbox because it exceeded its limit of memory."""
        if self._running is not None:
            self._over_memory = True
            self._running.kill()

    def output_tail(self) -> str:
        return "" if self._running is None else self._running.child.output_tail()

    def _make_directories(self) -> None:
        self._directory.mkdir(mode=0o700)
        self.workspace.mkdir(mode=0o700)
        make_mount_points(self.workspace, self.spec)
        if self._context.isolation is Isolation.PROCESS:
            (self._directory / process.HOME).mkdir(mode=0o700)
        if self.host_uid is not None:
            os.chown(self.workspace, self.host_uid, self.host_uid)

    def _place(self, pid: int) -> None:
        """Set the limits of the first process. All other processes inherit them."""
        self._cgroup.add(pid)
        for kind, value in rlimits(self.spec.limits, self._context.isolation).items():
            _, hard = resource.prlimit(pid, kind)
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.prlimit(pid, kind, (value, value))

    def _on_exit(self, _exited: object) -> None:
        running = self._running
        assert running is not None
        out_of_memory = self.ran_out_of_memory()
        self.exit_status = running.exit_status()
        output = running.child.output_tail()
        if isinstance(running, AdoptedJail) and not out_of_memory:
            how = "the kernel ended; an earlier broker had started it, so its status is unknown"
            self.ended.set_result(SandboxEnd(EndCause.KERNEL_DIED, how))
            return
        self.ended.set_result(end_of(self.exit_status, self.limits, out_of_memory, output))


def rlimits(limits: Limits, isolation: Isolation) -> dict[int, int]:
    """Values by `resource.RLIMIT_*`. Without RLIMIT_AS, since numpy reserves a lot of address space."""
    values = {
        resource.RLIMIT_CORE: 1,  # with 0, a `core_pattern` with a pipe would run the host's program
        resource.RLIMIT_FSIZE: max_file_bytes(limits),
        resource.RLIMIT_NOFILE: limits.open_files,
    }
    if isolation is Isolation.BUBBLEWRAP:  # without a jail it counts all processes of the user
        values[resource.RLIMIT_NPROC] = limits.processes
    return values
