"""The Pods that an earlier broker of the same state has left: adopted, or deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from . import sandbox_record
from .base import Rescue, SandboxSpec
from .directories import remove_tree
from .kubernetes_api import KubernetesError
from .kubernetes_sandbox import KubernetesSandbox
from .pod_certificate import PodSecret
from .pod_context import PodContext
from .pod_manifest import LABEL_BROKER, LABEL_SANDBOX
from .pod_status import Pod, address_of, end_of_pod
from .sandbox_record import SandboxRecord

log = logging.getLogger(__name__)

CHECKS = ("check", "neighbour")
"""The ids of the sandboxes of the check at startup."""


class PodOrphans:
    """The Pods and directories that are there before this broker has launched any.

    Attributes:
        left: the ids of their sandboxes, without those that were adopted or removed.
    """

    def __init__(self, context: PodContext) -> None:
        self._context = context
        self._directory = context.directories.sandboxes
        self.left = {path.name for path in self._directory.iterdir()}
        self._running: dict[str, tuple[Pod, PodSecret]] = {}

    async def find(self) -> None:
        """Ask the API what is left, and remove the checks of an earlier start. Raises KubernetesError."""
        context = self._context
        pods, _ = await context.api.list("pods", f"{LABEL_BROKER}={context.directories.broker_id}")
        for pod in pods:
            sandbox_id = str(pod["metadata"]["labels"][LABEL_SANDBOX])
            self.left.add(sandbox_id)
            if address_of(pod) is not None and end_of_pod(pod, SandboxSpec().limits) is None:
                try:
                    secret = await context.api.get("secrets", str(pod["metadata"]["name"]))
                    self._running[sandbox_id] = pod, PodSecret.of(secret["data"])
                except (KubernetesError, ValueError, KeyError) as error:
                    log.warning("Pod %s cannot be adopted: %s", pod["metadata"]["name"], error)
        for name in self.left.intersection(CHECKS):  # nobody has files there
            await self._delete(name)
            await self._remove_files(name)

    def adopt(self, specs: Sequence[SandboxSpec]) -> list[tuple[KubernetesSandbox, SandboxRecord]]:
        """Adopt those that run, are of one of the specs, and are either unused or all a session's."""
        by_digest = {self._context.digest(spec): spec for spec in specs}
        found = []
        for name in sorted(self.left.intersection(self._running)):
            record = sandbox_record.read(self._directory / name)
            if record is None or record.kernel_id is None:
                continue
            if record.session is not None and not record.is_ready:
                continue
            if (spec := by_digest.get(record.spec)) is None:
                continue
            pod, secret = self._running[name]
            try:
                sandbox = KubernetesSandbox(name, spec, self._context, secret)
            except OSError as error:  # the Secret has no certificate
                log.warning("Pod %s cannot be adopted: %s", pod["metadata"]["name"], error)
                continue
            sandbox.adopt(pod, record)
            found.append((sandbox, record))
            self.left.discard(name)
        return found

    async def end(self, rescue: Rescue | None) -> None:
        """Delete what was not adopted. Without `rescue`, or if it fails, the files stay.

        Raises:
            KubernetesError
        """
        names = sorted(self.left)
        await asyncio.gather(*map(self._delete, names))
        if names and (
            rescue is None or await asyncio.to_thread(rescue, self._context.directories.data)
        ):
            for name in names:
                await self._remove_files(name)

    async def _delete(self, name: str) -> None:
        await self._context.api.delete_and_wait("pods", self._context.pod_name(name))

    async def _remove_files(self, name: str) -> None:
        if await remove_tree(self._directory / name):
            self.left.discard(name)
