"""The `docker` backend: each sandbox is a container of an engine on this machine, Docker or Podman.

The container has no network; the gateway's socket comes to it as a descriptor (`sockets.py`). Where
its runtime cannot pass one, it has an `InternalNetwork`. A broker may die at any time: its gateways
end then, and the next broker removes the containers and networks, known by their labels. The engine
may go and come back: the sandboxes that it kept alive are used on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..egress.proxy import Proxy
from .base import (
    Backend,
    BackendUnavailable,
    Isolation,
    LaunchError,
    Network,
    Sandbox,
    SandboxSpec,
)
from .container_options import LABEL_BROKER, LABEL_DATA, LABEL_SANDBOX
from .directories import Directories, kept_below
from .docker_sandbox import DockerSandbox, Ground
from .docker_ways import AUTO, GVISOR, Asked, Transport, Way, Ways
from .engine import Engine, EngineError, Event, Missing
from .inside import GATEWAY_COMMAND, UID
from .internal_network import InternalNetwork
from .kept import rescue
from .open_network import OpenNetwork
from .roster import Roster

log = logging.getLogger(__name__)


class DockerBackend(Backend):
    """
    Args:
        image: what sandboxes are made of, by name or id; the engine must have it.
        data_dir: where workspaces are kept, in a directory for each broker. The engine must see it
            under the same path.
        run_dir: where sockets lie; short, since a socket's path has at most 107 bytes. As data_dir.
        host: where the engine listens; see `Engine`.
        runtime: `runc`, `runsc` (gVisor) or whatever the engine offers, or `auto`: gVisor where it
            works, else the engine's own choice.
        transport: how the gateways are reached.
        network: of the engine, for sandboxes with an open network; one of our own if not named.
        proxy: the way out of sandboxes with an allow list.
        command: what the image's Python runs, before the gateway's options.
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
    ) -> None:
        self._image = image
        self._data_dir = data_dir
        self._run_dir = run_dir
        self.kept = kept_below(data_dir)
        self._engine = Engine(host)
        self._asked = Asked(image, runtime, transport)
        self._way = Way(runtime)
        self._ways: Ways | None = None
        self._network = network
        self._proxy = proxy or Proxy()
        self._command = command
        self._info: Mapping[str, Any] = {}
        self._ground: Ground | None = None
        self._roster: Roster[DockerSandbox] = Roster()
        self._removals: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        engine = self._engine
        try:
            self._info = await engine.connect()
            await engine.require_image(self._image)
        except Missing as error:
            await engine.close()
            raise BackendUnavailable(
                f"The engine does not have the image {self._image}. Build it with `make image`, "
                "pull it, or name another one by docker.image."
            ) from error
        except EngineError as error:
            await engine.close()
            raise BackendUnavailable(
                f"No container engine can be used: {error}. Start one (systemctl start docker), join "
                "the group that may use its socket, or say by docker.host where it listens."
            ) from error
        try:
            directories = Directories.create(self._data_dir, self._run_dir)
        except OSError as error:
            await engine.close()
            raise BackendUnavailable(f"data_dir or run_dir is of no use: {error}") from error
        # Who is not root can give files to nobody else, so user code is its own user, contained.
        owner = UID if os.geteuid() == 0 else os.geteuid()
        labels = {
            LABEL_BROKER: directories.broker_id,
            LABEL_DATA: str(directories.data.parent),
        }
        name = f"kernelbroker-{directories.broker_id}-open"
        network = OpenNetwork(engine, self._network, name, labels)
        self._ground = Ground(engine, directories, self._image, owner, self._proxy, network)
        try:
            await self._reap(self._ground)
            broker = f"{LABEL_BROKER}={directories.broker_id}"
            engine.listen(broker, self._on_event, self._on_gap)
            self._ways = Ways(self._ground, self._info, self._asked, self._launch, self.remove)
            self._way = await self._ways.choose()
            if self._way.network is not None:  # over which nothing else can be had
                self.networks = frozenset({Network.NONE})
        except EngineError as error:
            await self.stop()
            raise BackendUnavailable(f"The container engine fails: {error}") from error
        except BaseException:
            await self.stop()
            raise
        if self._way.runtime == GVISOR:
            self.isolation = Isolation.GVISOR

    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> DockerSandbox:
        return await self._launch(sandbox_id, spec, self._way, self._command)

    async def remove(self, sandbox: Sandbox) -> None:
        await self._roster.remove(sandbox)

    async def stop(self) -> None:
        ground, self._ground = self._ground, None  # no launch from here on
        if ground is not None:
            await self._roster.remove_all()
            if self._ways is not None:
                await self._ways.close()
            try:
                await ground.open_network.remove()
            except EngineError as error:
                log.error("The network of open sandboxes could not be removed: %s", error)
            await ground.engine.close()
            await ground.directories.remove()

    def describe(self) -> dict[str, object]:
        group = f"cgroup-v{self._info.get('CgroupVersion', '1')}"

        def enforced(feature: str) -> str:
            return group if self._info.get(feature) else "none"

        return {
            "backend": "docker",
            "isolation": self.isolation.value,
            "runtime": self._way.runtime,
            "transport": Transport.TCP if self._way.network else Transport.UNIX,
            "host_network": "out of reach" if self._way.host_guarded else "within reach",
            "engine": f"{self._info.get('ServerVersion')}",
            "image": self._image,
            "seccomp": "on" if "seccomp" in str(self._info.get("SecurityOptions")) else "none",
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

    async def _launch(
        self, sandbox_id: str, spec: SandboxSpec, way: Way, command: Sequence[str]
    ) -> DockerSandbox:
        if self._ground is None:
            raise LaunchError("The backend is not running")
        sandbox = DockerSandbox(sandbox_id, spec, self._ground, way.runtime, way.network)
        await self._roster.launch(sandbox, sandbox.open(command))
        try:
            await sandbox.listening()
        except BaseException:
            await self.remove(sandbox)
            raise
        return sandbox

    def _on_event(self, event: Event) -> None:
        name = event.get("Actor", {}).get("Attributes", {}).get(LABEL_SANDBOX)
        if (sandbox := self._roster.sandboxes.get(name)) is not None and not sandbox.closing:
            sandbox.on_event(event)

    def _on_gap(self) -> None:
        for sandbox in self._roster.sandboxes.values():
            if sandbox.closing:  # an earlier try may have found no engine
                removal = asyncio.create_task(self.remove(sandbox))
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)
            else:
                sandbox.look(after_gap=True)

    async def _reap(self, ground: Ground) -> None:
        """Remove the containers of brokers that are dead, and then their directories.

        A broker has a directory as long as it has containers, or it had one: its lock tells.
        """
        data_dir = ground.directories.data.parent
        dead = {
            directories.broker_id: directories for directories in ground.directories.of_the_dead()
        }
        for container in await ground.engine.with_label(f"{LABEL_DATA}={data_dir}"):
            broker_id = container["Labels"][LABEL_BROKER]
            if broker_id in dead or not (data_dir / broker_id).exists():
                log.info("Removing a container that the broker %s left behind", broker_id)
                await ground.engine.remove(container["Names"][0].removeprefix("/"))
        for network in await ground.engine.networks_with_label(f"{LABEL_DATA}={data_dir}"):
            broker_id = network["Labels"][LABEL_BROKER]
            if broker_id in dead or not (data_dir / broker_id).exists():
                await ground.engine.remove_network(network["Name"])
                await InternalNetwork(ground.engine, broker_id).remove()  # and what goes with it
        for directories in dead.values():
            if await asyncio.to_thread(rescue, directories):
                await directories.remove()
