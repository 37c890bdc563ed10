"""The `docker` backend: each sandbox is a container of an engine on this machine, Docker or Podman.

The container has no network. The gateway gets its connections as descriptors (`sockets.py`), or, if the
runtime cannot pass descriptors, listens in an `InternalNetwork`. If the broker dies, its gateways end, at
once or after their grace, and the next broker finds the containers and networks by their labels. It adopts
those of its own state (`docker_orphans.py`), and removes the rest. If the engine restarts, sandboxes that
survived are used further.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..egress.proxy import Proxy
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
from .container_options import LABEL_BROKER, LABEL_DATA, LABEL_SANDBOX
from .directories import Directories
from .docker_context import BackendContext
from .docker_orphans import DockerOrphans
from .docker_reaper import reap
from .docker_sandbox import DockerSandbox
from .docker_transport import AUTO, LaunchMode, LaunchModeSelector, RequestedMode, Transport
from .engine import Engine, EngineError, Event, Missing
from .open_network import OpenNetwork
from .sandbox_layout import GATEWAY_COMMAND, UID
from .sandbox_set import SandboxSet
from .startup_check import RunCell, run_cell
from .usage import UsageMeter

log = logging.getLogger(__name__)


class DockerBackend(Backend):
    """Runs sandboxes as containers.

    Args:
        image: the image of the sandboxes, by name or id; the engine must have it.
        data_dir: the directory of workspaces, with a subdirectory for each broker. The engine must see it
            under the same path.
        run_dir: the directory of sockets, also under the same path. The path of a socket has at most 107
            bytes, so keep it short.
        host: the address of the engine; see `Engine`.
        runtime: `runc`, `runsc` (gVisor) or another runtime of the engine, or `auto`: gVisor if it works,
            else the engine's default.
        transport: how the broker reaches the gateways.
        network: a network of the engine for sandboxes with an open network; None to create one.
        proxy: the egress proxy of sandboxes with an allow list.
        command: the arguments of the image's Python, before the gateway's options.
        run_cell: runs the cell of the check at startup; it must fit the command.
        id_file: has the broker's id for the next broker, which adopts the sandboxes that live without this
            one; None if none do.
    """

    isolation = Isolation.CONTAINER
    networks = frozenset(Network)

    def __init__(
        self,
        *,
        image: str,
        data_dir: Path,
        run_dir: Path,
        host: str | None = None,
        runtime: str = AUTO,
        transport: Transport = Transport.AUTO,
        network: str | None = None,
        proxy: Proxy | None = None,
        command: Sequence[str] = GATEWAY_COMMAND,
        run_cell: RunCell = run_cell,
        id_file: Path | None = None,
    ) -> None:
        self._image = image
        self.data_dir = data_dir.absolute()
        self._run_dir = run_dir
        self._engine = Engine(host)
        self._requested = RequestedMode(image, runtime, transport)
        self._mode = LaunchMode(runtime)
        self._modes: LaunchModeSelector | None = None
        self._network = network
        self._proxy = proxy or Proxy()
        self._command = command
        self._run_cell = run_cell
        self._id_file = id_file
        self._orphans: list[DockerOrphans] = []
        self._taken: list[BackendContext] = []
        """What other brokers had."""
        self._later: asyncio.Task[None] | None = None
        self._info: Mapping[str, Any] = {}
        self._context: BackendContext | None = None
        self._sandboxes: SandboxSet[DockerSandbox] = SandboxSet()
        self._removals: set[asyncio.Task[None]] = set()

    async def start(self, rescue: Rescue | None = None) -> None:
        engine = self._engine
        try:
            self._info = await engine.connect()
            await engine.require_image(self._image)
        except Missing as error:
            await engine.close()
            raise BackendUnavailable(
                f"The engine does not have the image {self._image}. Build it with `make image`, "
                "pull it, or set docker.image to another one."
            ) from error
        except EngineError as error:
            await engine.close()
            raise BackendUnavailable(
                f"No container engine can be used: {error}. Start one (systemctl start docker), join "
                "the group that may use its socket, or set docker.host to its address."
            ) from error
        try:
            directories = Directories.open(self.data_dir, self._run_dir, self._id_file)
        except OSError as error:
            await engine.close()
            raise BackendUnavailable(f"data_dir or run_dir cannot be used: {error}") from error
        # A broker that is not root cannot change owners of files, so user code runs as its user.
        owner = UID if os.geteuid() == 0 else os.geteuid()
        labels = {
            LABEL_BROKER: directories.broker_id,
            LABEL_DATA: str(directories.data.parent),
        }
        name = f"kernelbroker-{directories.broker_id}-open"
        network = OpenNetwork(engine, self._network, name, labels)
        self._context = BackendContext(
            engine,
            directories,
            self._image,
            owner,
            self._proxy,
            network,
            UsageMeter(),
            confirm=self.confirm,
        )
        try:
            if (pause := await reap(self._context, rescue)) > 0:
                self._later = asyncio.create_task(self._reap_later(pause, rescue))
            self._orphans = [DockerOrphans(self._context)]
            await self._orphans[0].find()
            engine.listen(f"{LABEL_DATA}={labels[LABEL_DATA]}", self._on_event, self._on_gap)
            self._modes = LaunchModeSelector(
                self._context,
                self._info,
                self._requested,
                self._launch,
                self.remove,
                self._run_cell,
            )
            self._mode = await self._modes.choose()
            self.networks = self._mode.networks
            if self._mode.gvisor:
                self.isolation = Isolation.GVISOR
            else:
                self.browser_problem = (
                    'a browser in a container needs gVisor: set runtime = "runsc"'
                )
        except EngineError as error:
            await self.stop()
            raise BackendUnavailable(f"The container engine failed: {error}") from error
        except BaseException:
            await self.stop()
            raise

    @property
    def broker_ids(self) -> Sequence[str]:
        contexts = [] if self._context is None else [self._context, *self._taken]
        return [context.directories.broker_id for context in contexts]

    async def take(self, broker_id: str, epoch: int) -> bool:
        if self._context is None:
            return False
        directories = Directories.seize(self.data_dir, self._run_dir, broker_id)
        if directories is None:
            return False
        name = f"kernelbroker-{broker_id}-open"
        context = dataclasses.replace(self._context, directories=directories, epoch=epoch)
        network = OpenNetwork(self._engine, self._network, name, context.labels)
        context = dataclasses.replace(context, open_network=network)
        self._taken.append(context)
        orphans = DockerOrphans(context)
        try:
            await orphans.find()
        except EngineError as error:
            log.error("Containers of another broker could not be taken over: %s", error)
            return False
        self._orphans.append(orphans)
        return True

    def orphans(self, specs: Sequence[SandboxSpec]) -> Sequence[Orphan]:
        found = [each for orphans in self._orphans for each in orphans.adopt(specs, self._mode)]
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
            await orphans.end(self._mode, rescue)
        for sandbox in unwanted:  # their files are rescued
            await self.remove(sandbox)

    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> DockerSandbox:
        if spec.orphan_grace and spec.uses_proxy:
            spec = dataclasses.replace(spec, orphan_grace=0.0)  # its proxy ends with the broker
        return await self._launch(sandbox_id, spec, self._mode)

    async def remove(self, sandbox: Sandbox) -> None:
        await self._sandboxes.remove(sandbox)

    async def stop(self) -> None:
        await self._stop(lambda _: True)

    async def leave(self) -> None:
        """As `stop`, but leave the sandboxes that outlive the broker to the next one."""
        await self._stop(lambda sandbox: not sandbox.spec.orphan_grace)

    async def _stop(self, is_removed: Callable[[DockerSandbox], bool]) -> None:
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])
        context, self._context = self._context, None  # refuse further launches
        if context is not None:
            sandboxes = self._sandboxes.by_id
            await asyncio.gather(*(self.remove(s) for s in sandboxes.values() if is_removed(s)))
            await self._sandboxes.removals()
            # Without an engine, those that were to be removed are still there, too.
            for sandbox in sandboxes.values():
                sandbox.leave()
            is_left = any(not is_removed(sandbox) for sandbox in sandboxes.values())
            if is_left or any(orphans.left for orphans in self._orphans):
                await context.engine.close()
                for each in (context, *self._taken):
                    each.directories.release()  # the next broker finds them
                return
            if self._modes is not None:
                await self._modes.close()
            try:
                for each in (context, *self._taken):
                    await each.open_network.remove()
            except EngineError as error:
                log.error("The network of open sandboxes could not be removed: %s", error)
            await context.engine.close()
            for each in (context, *self._taken):
                await each.directories.remove()

    def describe(self) -> dict[str, object]:
        group = f"cgroup-v{self._info.get('CgroupVersion', '1')}"

        def enforced(feature: str) -> str:
            return group if self._info.get(feature) else "none"

        return {
            "backend": "docker",
            "isolation": self.isolation.value,
            "runtime": self._mode.runtime,
            "transport": Transport.TCP if self._mode.network else Transport.UNIX,
            "host_network": "out of reach" if self._mode.host_guarded else "within reach",
            "engine": f"{self._info.get('ServerVersion')}",
            "image": self._image,
            "seccomp": self._seccomp(),
            "host_user": "one of its own" if os.geteuid() == 0 else "the broker's",
            "networks": sorted(self.networks),
            "limits": {
                "cpus": enforced("CpuCfsQuota"),
                "memory": enforced("MemoryLimit"),
                "processes": enforced("PidsLimit"),
                "tmp_size": "tmpfs",
                "open_files": "rlimit",
                "workspace": "watched",
            },
        }

    def _seccomp(self) -> str:
        if self._mode.gvisor:
            return "gVisor's own"  # gVisor does not use the engine's filter
        return "on" if "seccomp" in str(self._info.get("SecurityOptions")) else "none"

    async def _launch(self, sandbox_id: str, spec: SandboxSpec, mode: LaunchMode) -> DockerSandbox:
        if self._context is None:
            raise LaunchError("The backend is not running")
        sandbox = DockerSandbox(
            sandbox_id, spec, self._context, mode.runtime, mode.network, gvisor=mode.gvisor
        )
        await self._sandboxes.launch(sandbox, sandbox.open(self._command))
        try:
            await sandbox.listening()
        except BaseException:
            await self.remove(sandbox)
            raise
        return sandbox

    def _on_event(self, event: Event) -> None:
        labels = event.get("Actor", {}).get("Attributes", {})
        if labels.get(LABEL_BROKER) not in self.broker_ids:
            return
        name = labels.get(LABEL_SANDBOX)
        if (sandbox := self._sandboxes.by_id.get(name)) is not None and not sandbox.closing:
            sandbox.on_event(event)

    def _on_gap(self) -> None:
        for sandbox in self._sandboxes.by_id.values():
            if sandbox.closing:  # an earlier attempt may have failed without an engine
                removal = asyncio.create_task(self.remove(sandbox))
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)
            else:
                sandbox.look(after_gap=True)

    async def _reap_later(self, pause: float, rescue: Rescue | None) -> None:
        """End what nobody has adopted within its grace."""
        while pause > 0:
            await asyncio.sleep(pause)
            assert self._context is not None, "stop() cancels this first"
            try:
                pause = await reap(self._context, rescue)
            except EngineError as error:
                log.error("Containers of dead brokers could not be removed: %s", error)
