"""The containers that an earlier broker of the same state has left: adopted, or ended and removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kernelbroker_kernel.contract import CONTRACT, CONTRACT_LABEL, TOKEN_VARIABLE

from . import sandbox_record
from .base import LaunchError, Rescue, SandboxSpec
from .container_options import LABEL_BROKER, LABEL_SANDBOX
from .directories import remove_tree
from .docker_context import BackendContext
from .docker_sandbox import DockerSandbox
from .docker_transport import CHECKS, LaunchMode
from .engine import Missing, Refused, address_in
from .image_names import tag
from .internal_network import InternalNetwork
from .sandbox_record import SandboxRecord

log = logging.getLogger(__name__)


class DockerOrphans:
    """The containers and directories that are there before this broker has launched any.

    Attributes:
        left: the ids of their sandboxes, without those that were adopted or removed.
    """

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._directory = context.directories.sandboxes
        self.left = {path.name for path in self._directory.iterdir()}
        self._running: dict[str, Mapping[str, Any]] = {}
        self._rebuilt: set[str] = set()
        """Those whose image has been built again."""

    async def find(self) -> None:
        """Ask the engine what is left, and remove the checks of an earlier start.

        A container whose image was built again is adopted only with its session, and only if both images
        have the same contract: otherwise broker and image may not fit.

        Raises:
            EngineError
        """
        context = self._context
        broker = f"{LABEL_BROKER}={context.directories.broker_id}"
        for container in await context.engine.with_label(broker):
            sandbox_id = container["Labels"][LABEL_SANDBOX]
            self.left.add(sandbox_id)
            if container["State"] == "running":
                with contextlib.suppress(Missing, Refused):
                    running = await context.engine.inspect(context.container_name(sandbox_id))
                    if not await self._has_current_image(running):
                        self._rebuilt.add(sandbox_id)
                    self._running[sandbox_id] = running
        for network in await context.engine.networks_with_label(broker):
            context.open_network.adopt(network["Name"])
        for name in self.left.intersection(CHECKS):  # nobody has files there
            await self._end_container(name)
            await self._remove_files(name)

    def adopt(
        self, specs: Sequence[SandboxSpec], mode: LaunchMode
    ) -> list[tuple[DockerSandbox, SandboxRecord]]:
        """Adopt those that run, are of one of the specs, and are either unused or all a session's."""
        image, tcp = self._context.image, mode.network is not None
        by_digest = {DockerSandbox.digest(s, image, mode.runtime, tcp=tcp): s for s in specs}
        found = []
        for name in sorted(self.left.intersection(self._running)):
            record = sandbox_record.read(self._directory / name)
            if record is None or record.kernel_id is None:
                continue
            if record.session is not None and not record.is_ready:
                continue
            if (spec := by_digest.get(record.spec)) is None:
                continue
            config = self._running[name]["Config"]
            is_current = tag(config["Image"]) == tag(spec.image or image)
            if name in self._rebuilt or not is_current:
                contract = (config.get("Labels") or {}).get(CONTRACT_LABEL)
                if record.session is None or contract != CONTRACT:
                    continue
            try:
                sandbox = DockerSandbox.adopt(
                    name,
                    spec,
                    self._context,
                    (mode.runtime, mode.network, mode.gvisor),
                    record,
                    _address(self._running[name], mode.network),
                )
            except (OSError, LaunchError) as error:
                log.warning("container %s cannot be adopted: %s", name, error)
                continue
            found.append((sandbox, record))
            self.left.discard(name)
        return found

    async def end(self, mode: LaunchMode, rescue: Rescue | None) -> None:
        """End and remove what was not adopted. Without `rescue`, or if it fails, the files stay.

        Raises:
            EngineError
        """
        names, context = sorted(self.left), self._context
        await asyncio.gather(*map(self._end_container, names))
        broker_id = context.directories.broker_id
        network = InternalNetwork(context.engine, broker_id)
        left = await context.engine.networks_with_label(f"{LABEL_BROKER}={broker_id}")
        if mode.network is None and any(each["Name"] == network.name for each in left):
            await network.remove()
        if names and (rescue is None or await asyncio.to_thread(rescue, context.directories.data)):
            for name in names:
                await self._remove_files(name)

    async def _has_current_image(self, container: Mapping[str, Any]) -> bool:
        """Whether the name of the container's image still means this image."""
        try:
            image = await self._context.engine.image_id(container["Config"]["Image"])
        except (Missing, Refused):  # the engine filter allows only the version of now
            return False
        return image.removeprefix("sha256:") == str(container["Image"]).removeprefix("sha256:")

    async def _end_container(self, name: str) -> None:
        await self._context.engine.remove(self._context.container_name(name))

    async def _remove_files(self, name: str) -> None:
        run = self._context.directories.run
        for path in (run / f"{name}.sock", run / f"{name}.out"):
            path.unlink(missing_ok=True)
        if await remove_tree(run / f"{name}.give") and await remove_tree(self._directory / name):
            self.left.discard(name)


def _address(container: Mapping[str, Any], network: InternalNetwork | None) -> tuple[str, str]:
    """Return the gateway's host and token in the network. Both are empty without one."""
    if network is None:
        return "", ""
    variables = dict(each.partition("=")[::2] for each in container["Config"]["Env"])
    return address_in(container, network.name), variables.get(TOKEN_VARIABLE, "")
