"""The `local` backend: each sandbox is a bubblewrap jail on this machine.

Where jails do not work, and `require_isolation` is off, a sandbox is a plain process. Control groups
enforce the limits if they are writable. Otherwise a watchdog enforces the limit of memory, and RLIMIT_NPROC
the number of processes. Sessions watch the disk usage of workspaces (`workspaces/quota_watch.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import Popen

from ..advice import as_root
from ..egress.proxy import Proxy
from ..supervisor import SupervisedTask, Supervisor
from . import (
    checkpoint_ability,
    common_files,
    local_description,
    orphan_watch,
    process,
    procfs,
    seccomp,
)
from .base import (
    Backend,
    BackendUnavailable,
    Isolation,
    LaunchError,
    Network,
    Orphan,
    Rescue,
    Sandbox,
    SandboxSpec,
)
from .cgroups import ROOT, Cgroups
from .checkpoint_ability import CheckpointAbility
from .checkpoint_sandbox import CheckpointSandbox
from .criu import Criu
from .directories import Directories
from .fork_server import ForkServer
from .fork_servers import MAX_FORKS, ForkServers
from .host import Host
from .local_orphans import LocalOrphans, reap
from .local_sandbox import LocalContext, LocalSandbox
from .sandbox_layout import GATEWAY_COMMAND
from .sandbox_set import SandboxSet
from .sockets import SUN_PATH_BYTES
from .usage import UsageMeter

log = logging.getLogger(__name__)

_PROBE = ("-c", "")
_PROBE_ID = "probe"
_PROBE_TIMEOUT_S = 20.0
_WATCH_INTERVAL_S = 0.25
_ADVICE = (
    f"Install bubblewrap 0.8 or later ({as_root('apt-get', 'install', 'bubblewrap')}) and allow user "
    "namespaces"
)


class LocalBackend(Backend):
    """Runs sandboxes as jails or plain processes of this machine.

    Args:
        kernel_python: the interpreter of an environment with kernel_image/requirements.txt.
        data_dir: the directory of workspaces, with a subdirectory for each broker.
        run_dir: the directory of sockets. The path of a socket has at most 107 bytes, so keep it short.
        require_isolation: refuse to start where jails do not work.
        sandbox_uid: the host user of code in a jail, if the broker is root. No account on the machine
            may have it. All jails share it, since the files of a session move from one jail to the next.
            The namespaces of the jails isolate them from each other.
        proxy: the egress proxy of sandboxes with an allow list.
        supervisor: restarts the memory watchdog when it fails.
        command: the arguments of the kernels' Python, before `--fd N`.
        bwrap: bubblewrap's name or path.
        cgroup_root: where control groups are mounted.
        fork_server: fork gateways from a server of their template, which has imported everything.
        max_forks: how many gateways one server forks before it is replaced.
        criu: CRIU's name or path, if processes of sandboxes shall be saved.
        id_file: has the broker's id for the next broker, which adopts the sandboxes that live without this
            one; None if none do.
    """

    isolation = Isolation.BUBBLEWRAP
    # An open network would be the network of the host, where the broker itself listens on the loopback.
    networks = frozenset({Network.NONE, Network.ALLOWLIST})

    def __init__(
        self,
        *,
        kernel_python: Path,
        data_dir: Path,
        run_dir: Path,
        require_isolation: bool = False,
        sandbox_uid: int = 200_000,
        proxy: Proxy | None = None,
        supervisor: Supervisor | None = None,
        command: Sequence[str] = GATEWAY_COMMAND,
        bwrap: str = "bwrap",
        cgroup_root: Path = ROOT,
        fork_server: bool = False,
        max_forks: int = MAX_FORKS,
        id_file: Path | None = None,
        criu: str | None = None,
    ) -> None:
        self._kernel_python = kernel_python
        self.data_dir = data_dir.absolute()
        self._run_dir = run_dir
        self._require_isolation = require_isolation
        self._sandbox_uid = sandbox_uid
        self._proxy = proxy or Proxy()
        self._supervisor = supervisor or Supervisor()
        self._command = command
        self._bwrap = bwrap
        self._cgroup_root = cgroup_root
        self._fork_server = fork_server
        self._max_forks = max_forks
        self._id_file = id_file
        self._criu = criu
        self._checkpoints = CheckpointAbility()
        self._orphans: list[LocalOrphans] = []
        self._orphan_watches: list[Popen[bytes]] = []
        self._taken: list[LocalContext] = []
        """What other brokers had."""
        self.fork_servers: ForkServers | None = None
        """Set by `start`, if gateways can be forked."""
        self._context: LocalContext | None = None
        self._watchdog: SupervisedTask | None = None
        self._sandboxes: SandboxSet[LocalSandbox] = SandboxSet()

    async def start(self, rescue: Rescue | None = None) -> None:
        host = await asyncio.to_thread(Host.discover, self._kernel_python, self._bwrap)
        try:
            directories = Directories.open(self.data_dir, self._run_dir, self._id_file)
        except OSError as error:
            raise BackendUnavailable(f"data_dir or run_dir cannot be used: {error}") from error
        cgroups = Cgroups.prepare(directories.broker_id, self._cgroup_root)
        self._context = LocalContext(
            host,
            directories,
            cgroups,
            Isolation.BUBBLEWRAP,
            self._proxy,
            UsageMeter(),
            confirm=self.confirm,
        )
        self._orphans = [LocalOrphans(self._context)]
        try:
            await self._orphans[0].remove_probe(_PROBE_ID)
            common_files.write(directories.run, host)
            if self._id_file is not None:
                self._orphan_watches.append(orphan_watch.start(directories.data))
            await reap(directories, self._cgroup_root, rescue)
            if self._require_isolation and seccomp.filter_for() is None:
                raise BackendUnavailable(
                    f"There is no filter of system calls for the processor {platform.machine()}: jails "
                    "would be weaker than elsewhere. Use containers or set local.require_isolation = false."
                )
            if (failure := await self._try_jail(host)) is not None:
                self._run_without_jail(self._context, failure)
                self.browser_problem = "a browser needs jails, which do not work here"
            else:
                self.browser_problem = host.browser_problem
        except BaseException:
            await self.stop()
            raise
        if self._fork_server and self._context.isolation is Isolation.BUBBLEWRAP:
            etc = directories.run / "etc"
            self.fork_servers = ForkServers(host, etc, self._supervisor, self._max_forks)
        if self._criu is not None and self._context.isolation is Isolation.BUBBLEWRAP:
            self._checkpoints = await checkpoint_ability.find(
                self._context, self._criu, self._sandbox_uid, self._launch_probe, self.remove
            )
            if self._checkpoints.reason:
                log.warning("Processes cannot be saved: %s", self._checkpoints.reason)
        if cgroups.enforced_by("memory") is None:
            self._watchdog = self._supervisor.start("memory watchdog", self._watch_memory)

    @property
    def broker_ids(self) -> Sequence[str]:
        contexts = [] if self._context is None else [self._context, *self._taken]
        return [context.directories.broker_id for context in contexts]

    async def take(self, broker_id: str, epoch: int) -> bool:
        if self._context is None or self.isolation is not Isolation.BUBBLEWRAP:
            return False
        directories = Directories.seize(self.data_dir, self._run_dir, broker_id)
        if directories is None:
            return False
        cgroups = Cgroups.prepare(broker_id, self._cgroup_root)
        context = dataclasses.replace(
            self._context, directories=directories, cgroups=cgroups, epoch=epoch
        )
        self._taken.append(context)
        self._orphans.append(LocalOrphans(context))
        self._orphan_watches.append(orphan_watch.start(directories.data))
        return True

    def orphans(self, specs: Sequence[SandboxSpec]) -> Sequence[Orphan]:
        if self.isolation is not Isolation.BUBBLEWRAP:
            return ()
        criu = self._checkpoints.criu
        found = [each for orphans in self._orphans for each in orphans.adopt(specs, criu)]
        for sandbox, _ in found:
            self._sandboxes.adopt(sandbox)
        return [
            Orphan(sandbox, record.kernel_id, record.session)
            for sandbox, record in found
            if record.kernel_id is not None
        ]

    async def end_orphans(self, unwanted: Sequence[Sandbox], rescue: Rescue | None = None) -> None:
        await asyncio.gather(*(sandbox.kill() for sandbox in unwanted))
        for orphans in self._orphans:
            await orphans.end(rescue)
        for sandbox in unwanted:  # their files are rescued
            await self.remove(sandbox)

    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> LocalSandbox:
        jailed = self.isolation is Isolation.BUBBLEWRAP
        if spec.orphan_grace and (not jailed or spec.uses_proxy):
            # The proxy of a jail ends with the broker, and nothing outside of a plain process ends it.
            spec = dataclasses.replace(spec, orphan_grace=0.0)
        criu = None if self.why_no_process_checkpoints(spec) else self._checkpoints.criu
        server = None
        if criu is None and self._context is not None and self.fork_servers is not None:
            server = await self.fork_servers.get(spec, self._command)
        return await self._launch(sandbox_id, spec, self._command, server, criu)

    def why_no_process_checkpoints(self, spec: SandboxSpec) -> str:
        return self._checkpoints.why_not(spec)

    async def remove(self, sandbox: Sandbox) -> None:
        await self._sandboxes.remove(sandbox)

    async def stop(self) -> None:
        await self._stop(lambda _: True)

    async def leave(self) -> None:
        await self._stop(lambda sandbox: not sandbox.spec.orphan_grace)

    async def _stop(self, is_removed: Callable[[LocalSandbox], bool]) -> None:
        if self._watchdog is not None:
            await self._watchdog.stop()
            self._watchdog = None
        context, self._context = self._context, None  # refuse further launches
        servers, self.fork_servers = self.fork_servers, None
        sandboxes = self._sandboxes.by_id
        await asyncio.gather(*(self.remove(s) for s in sandboxes.values() if is_removed(s)))
        if servers is not None:  # last, since they reap their gateways
            await servers.stop()
        is_left = any(not is_removed(sandbox) for sandbox in sandboxes.values())
        if any(orphans.left for orphans in self._orphans):  # the start failed
            is_left = True
        if context is not None and is_left:
            for sandbox in sandboxes.values():
                sandbox.leave()
            for each in (context, *self._taken):
                each.directories.release()  # the next broker finds them, or the watch
            return
        for watch in self._orphan_watches:
            watch.kill()
            await asyncio.to_thread(watch.wait)
        self._orphan_watches.clear()
        for each in () if context is None else (context, *self._taken):
            await each.cgroups.remove()
            await each.directories.remove()

    def describe(self) -> dict[str, object]:
        assert self._context is not None, "start() comes first"
        jailed = self.isolation is Isolation.BUBBLEWRAP
        return local_description.describe(
            self._context,
            sorted(self.networks) if jailed else "not enforced",
            self._checkpoints.reason,
            "started" if self.fork_servers is None else self.fork_servers.describe(),
        )

    async def _launch(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        command: Sequence[str],
        server: ForkServer | None = None,
        criu: Criu | None = None,
    ) -> LocalSandbox:
        context = self._context
        if context is None:
            raise LaunchError("The backend is not running")
        self.require_network(spec)
        own_user = context.host.root and context.isolation is Isolation.BUBBLEWRAP
        host_uid = self._sandbox_uid if own_user else None
        if criu is not None:
            sandbox: LocalSandbox = CheckpointSandbox(
                sandbox_id, spec, context, self._sandbox_uid, criu
            )
        else:
            sandbox = LocalSandbox(sandbox_id, spec, context, host_uid)
        await self._sandboxes.launch(sandbox, sandbox.open(command, server))
        return sandbox

    async def _launch_probe(
        self, sandbox_id: str, spec: SandboxSpec, criu: Criu
    ) -> CheckpointSandbox:
        probe = await self._launch(sandbox_id, spec, checkpoint_ability.PROGRAM, criu=criu)
        assert isinstance(probe, CheckpointSandbox)
        return probe

    async def _try_jail(self, host: Host) -> str | None:
        """Run Python in a jail. Returns the reason of a failure, or None if it works."""
        if host.bwrap is None:
            return "bubblewrap is missing"
        if host.root and host.setpriv is None:
            return "setpriv, of util-linux, is missing"
        try:
            probe = await self._launch(_PROBE_ID, SandboxSpec(), _PROBE)
        except LaunchError as error:
            return str(error)
        try:
            await asyncio.wait([probe.ended], timeout=_PROBE_TIMEOUT_S)
            return None if probe.exit_status == 0 else f"the check failed: {probe.output_tail()}"
        finally:
            await self.remove(probe)

    def _run_without_jail(self, context: LocalContext, failure: str) -> None:
        if self._require_isolation:
            raise BackendUnavailable(f"Jails do not work here: {failure}. {_ADVICE}.")
        if process.longest_socket_path(context.directories.sandboxes) >= SUN_PATH_BYTES:
            raise BackendUnavailable(
                f"Jails do not work here: {failure}. {_ADVICE}. To run without jails, set a shorter "
                f"data_dir: {self.data_dir} is too long for the paths of the kernels' sockets."
            )
        self.isolation = Isolation.PROCESS
        self.networks = frozenset({Network.NONE})  # nothing enforces it
        self._context = dataclasses.replace(context, isolation=Isolation.PROCESS)
        log.warning(
            "NO ISOLATION: user code runs as a plain process, with the files, the network and the "
            "rights of this broker, since jails do not work here: %s. %s.",
            failure,
            _ADVICE,
        )

    async def _watch_memory(self) -> None:
        """Enforce the limit of memory without control groups until cancelled."""
        while True:
            await self._end_over_memory()
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def _end_over_memory(self) -> None:
        watched = {s.roots: s for s in self._sandboxes.by_id.values() if s.roots}
        limits = {roots: sandbox.limits.memory for roots, sandbox in watched.items()}
        if limits:
            for roots in await asyncio.to_thread(procfs.over_memory, limits):
                watched[roots].kill_over_memory()
