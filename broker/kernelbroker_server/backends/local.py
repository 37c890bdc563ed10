"""The `local` backend: each sandbox is a bubblewrap jail on this machine.

Where no jail can be had, and that is not insisted on, a sandbox is a plain process. Limits are held
by control groups where they are writable; memory by a watchdog otherwise, the number of processes
by RLIMIT_NPROC. What a workspace takes on the disk the sessions watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from ..egress.proxy import Proxy
from . import jail, process, procfs, seccomp
from .base import (
    Backend,
    BackendUnavailable,
    Isolation,
    LaunchError,
    Network,
    Sandbox,
    SandboxSpec,
)
from .cgroups import ROOT, Cgroups
from .directories import Directories, kept_below
from .host import Host
from .inside import GATEWAY_COMMAND
from .kept import rescue
from .local_sandbox import Ground, LocalSandbox
from .roster import Roster
from .sockets import SUN_PATH_BYTES

log = logging.getLogger(__name__)

_PROBE = ("-c", "")
_PROBE_TIMEOUT_S = 20.0
_WATCH_INTERVAL_S = 0.25
_ADVICE = "Install bubblewrap 0.8 or later (apt-get install bubblewrap) and allow user namespaces"


class LocalBackend(Backend):
    """
    Args:
        kernel_python: the interpreter of an environment with kernel_image/requirements.txt.
        data_dir: where workspaces are kept, in a directory for each broker.
        run_dir: where sockets lie; short, since a socket's path has at most 107 bytes.
        require_isolation: refuse to start where jails do not work, rather than do without.
        sandbox_uid: if the broker is root, who code in a jail is on the host. No account on the
            machine may have it. All jails share it, since a session's files move from one to the
            next; with namespaces of their own they cannot reach each other.
        proxy: the way out of sandboxes with an allow list.
        command: what the kernels' Python runs, before `--fd N`.
        bwrap: bubblewrap's name or path.
        cgroup_root: where control groups are mounted.
    """

    isolation = Isolation.BUBBLEWRAP
    # Open would be the host's own network, and all that listens on its loopback, the broker included.
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
        command: Sequence[str] = GATEWAY_COMMAND,
        bwrap: str = "bwrap",
        cgroup_root: Path = ROOT,
    ) -> None:
        self._kernel_python = kernel_python
        self._data_dir = data_dir
        self._run_dir = run_dir
        self.kept = kept_below(data_dir)
        self._require_isolation = require_isolation
        self._sandbox_uid = sandbox_uid
        self._proxy = proxy or Proxy()
        self._command = command
        self._bwrap = bwrap
        self._cgroup_root = cgroup_root
        self._ground: Ground | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._roster: Roster[LocalSandbox] = Roster()

    async def start(self) -> None:
        host = await asyncio.to_thread(Host.discover, self._kernel_python, self._bwrap)
        try:
            directories = Directories.create(self._data_dir, self._run_dir)
        except OSError as error:
            raise BackendUnavailable(f"data_dir or run_dir is of no use: {error}") from error
        cgroups = Cgroups.prepare(directories.broker_id, self._cgroup_root)
        self._ground = Ground(host, directories, cgroups, Isolation.BUBBLEWRAP, self._proxy)
        try:
            _lay_out(directories.run, host)
            await self._reap(directories)
            if (failure := await self._try_jail(host)) is not None:
                self._do_without_jail(self._ground, failure)
        except BaseException:
            await self.stop()
            raise
        if cgroups.enforced_by("memory") is None:
            self._watchdog = asyncio.create_task(self._watch_memory())

    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> LocalSandbox:
        return await self._launch(sandbox_id, spec, self._command)

    async def remove(self, sandbox: Sandbox) -> None:
        await self._roster.remove(sandbox)

    async def stop(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            await asyncio.wait([self._watchdog])
            self._watchdog = None
        ground, self._ground = self._ground, None  # no launch from here on
        await self._roster.remove_all()
        if ground is not None:
            await ground.cgroups.remove()
            await ground.directories.remove()

    def describe(self) -> dict[str, object]:
        assert self._ground is not None, "start() comes first"
        jailed = self.isolation is Isolation.BUBBLEWRAP
        enforced_by = self._ground.cgroups.enforced_by
        own_user = jailed and self._ground.host.root
        return {
            "backend": "local",
            "isolation": self.isolation.value,
            "seccomp": "on" if jailed and seccomp.filter_for() else "none",
            "host_user": "one of its own" if own_user else "the broker's",
            "networks": sorted(self.networks) if jailed else "not enforced",
            "limits": {
                "cpus": enforced_by("cpu") or "none",
                "memory": enforced_by("memory") or "watchdog",
                "processes": enforced_by("pids") or ("rlimit" if jailed else "none"),
                "tmp_size": "tmpfs" if jailed else "none",
                "open_files": "rlimit",
                "workspace": "watched",
            },
        }

    async def _launch(
        self, sandbox_id: str, spec: SandboxSpec, command: Sequence[str]
    ) -> LocalSandbox:
        ground = self._ground
        if ground is None:
            raise LaunchError("The backend is not running")
        self.require_network(spec)
        own_user = ground.host.root and ground.isolation is Isolation.BUBBLEWRAP
        host_uid = self._sandbox_uid if own_user else None
        sandbox = LocalSandbox(sandbox_id, spec, ground, host_uid)
        await self._roster.launch(sandbox, sandbox.open(command))
        return sandbox

    async def _reap(self, directories: Directories) -> None:
        for dead in directories.of_the_dead():
            log.info("Removing what the broker %s left behind", dead.broker_id)
            for pid in procfs.started_in(dead.sandboxes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await Cgroups.reap(dead.broker_id, self._cgroup_root)
            if await asyncio.to_thread(rescue, dead):
                await dead.remove()

    async def _try_jail(self, host: Host) -> str | None:
        """Run Python in a real jail; returns what went wrong."""
        if host.bwrap is None:
            return "bubblewrap is missing"
        if host.root and host.setpriv is None:
            return "setpriv, of util-linux, is missing"
        try:
            probe = await self._launch("probe", SandboxSpec(), _PROBE)
        except LaunchError as error:
            return str(error)
        try:
            await asyncio.wait([probe.ended], timeout=_PROBE_TIMEOUT_S)
            return None if probe.exit_status == 0 else f"the trial failed: {probe.output_tail()}"
        finally:
            await self.remove(probe)

    def _do_without_jail(self, ground: Ground, failure: str) -> None:
        if self._require_isolation:
            raise BackendUnavailable(f"No jail can be had: {failure}. {_ADVICE}.")
        if process.longest_socket_path(ground.directories.sandboxes) >= SUN_PATH_BYTES:
            raise BackendUnavailable(
                f"No jail can be had: {failure}. {_ADVICE}. To do without one, set a shorter "
                f"data_dir: the kernels' sockets lie below {self._data_dir}, which is too long for them."
            )
        self.isolation = Isolation.PROCESS
        self.networks = frozenset({Network.NONE})  # not that it would be enforced
        self._ground = dataclasses.replace(ground, isolation=Isolation.PROCESS)
        log.warning(
            "NO ISOLATION: user code runs as a plain process, with the files, the network and the "
            "rights of this broker, since no jail can be had: %s. %s.",
            failure,
            _ADVICE,
        )

    async def _watch_memory(self) -> None:
        """Where no control group holds memory: look, again and again, whatever comes in between."""
        failure: type[Exception] | None = None
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            try:
                await self._end_over_memory()
            except Exception as error:
                # Such as no descriptor being left: the next look may go well. Told once, not at each.
                if failure is not type(error):
                    log.exception("Nobody's memory is watched until this is over")
                failure = type(error)
            else:
                failure = None

    async def _end_over_memory(self) -> None:
        watched = {s.leader: s for s in self._roster.sandboxes.values() if s.leader is not None}
        limits = {leader: sandbox.spec.limits.memory for leader, sandbox in watched.items()}
        if limits:
            for leader in await asyncio.to_thread(procfs.over_memory, limits):
                watched[leader].kill_over_memory()


def _lay_out(run: Path, host: Host) -> None:
    """The files that every sandbox is given."""
    (run / "etc").mkdir()
    for name, content in jail.ETC.items():
        (run / "etc" / name).write_text(content)
    # For plain processes: our package, and nothing else of the broker's environment.
    (run / "lib").mkdir()
    (run / "lib" / host.package.name).symlink_to(host.package)
